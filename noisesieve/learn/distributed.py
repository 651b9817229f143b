"""The processes of a `torchrun`: they split the rows, sum their gradients, and exchange small texts.

Without torchrun there is one process, and every method returns at once.
"""

from __future__ import annotations

import atexit
import datetime
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from noisesieve.core.progress import Session
from noisesieve.learn.device import choose_device

TIMEOUT = datetime.timedelta(minutes=10)  # per exchange; while rank 0 decodes, the others wait in `broadcast`
GATHER_VALUES = 2**22  # numbers exchanged at a time: all scores at once may not fit the device


# Number of the next `broadcast`. It never restarts: a second stage of the same process uses the same store.
_BROADCASTS = itertools.count()


class Processes:
    """The processes that take part in this run; `rank` is this one's number, 0 is the leader."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank = rank
        self.size = size
        self.device = device or torch.device("cpu")
        self._shared = False  # a task was passed to the other ranks

    @classmethod
    def join(cls, device_name: str) -> Processes:
        """Return the processes that torchrun started, or this process alone."""
        device = choose_device(device_name)
        if not dist.is_torchelastic_launched():
            return cls(device=device)
        if device.type == "mps":  # gloo cannot exchange Metal tensors
            device = torch.device("cpu")
        if device.type == "cuda":
            device = torch.device("cuda", dist.get_node_local_rank())
            torch.cuda.set_device(device)
        if not dist.is_initialized():  # a second stage of the same process keeps the group
            # Without a name: NCCL between GPUs, and gloo for the flags that CPUs exchange.
            dist.init_process_group(None if device.type == "cuda" else "gloo", timeout=TIMEOUT)
            atexit.register(_leave)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def broadcast(self, text: str, pause: Callable[[], None] = lambda: None) -> str:
        """Return rank 0's `text` on every rank. The other ranks wait until rank 0 calls this."""
        if self.size == 1:
            return text
        store = dist.distributed_c10d._get_default_store()
        key = f"noisesieve/{next(_BROADCASTS)}"
        if self.is_leader:
            store.set(key, text)
            return text
        while not store.check([key]):
            pause()  # raises if a stop was requested
            time.sleep(0.1)
        return str(store.get(key).decode())

    def share(self, folder: str) -> None:
        """Pass the folder of a task to the other ranks, which take part in it."""
        self._shared = True
        self.broadcast(folder)

    def release(self) -> None:
        """Let the other ranks end, unless a task was shared with them."""
        if not self._shared:
            self.broadcast("")

    def parallel(self, model: nn.Module, image_size: int) -> nn.Module:
        """Return a module that computes what `model` does and averages the gradients over the ranks.

        Each rank has its own part of a batch, and the same number of steps: one without rows takes part with a row of
        weight zero. Scores are computed by the model itself.
        """
        if self.size == 1:
            return model
        on_gpu = self.device.type == "cuda"
        ddp = DistributedDataParallel(model, device_ids=[self.device] if on_gpu else None, gradient_as_bucket_view=True)
        # BatchNorm's statistics are averaged at the end of an epoch and before a save. As an option of the constructor
        # this is deprecated since torch 2.13, and what replaces it is not in 2.10.
        ddp.broadcast_buffers = False
        # After its first backward pass DDP orders its buckets anew, and with three ranks or more the order decides the
        # last bits of a sum. A pass without effect beforehand gives a resumed run the same order.
        model.eval()  # keeps BatchNorm's statistics
        (ddp(torch.zeros((1, 3, image_size, image_size), device=self.device)).sum() * 0).backward()
        model.zero_grad()
        model.train()
        return ddp

    def any(self, *flags: bool) -> list[bool]:
        """Return which flags are set on any rank. They are exchanged between CPUs, without the device."""
        if self.size == 1:
            return list(flags)
        numbers = torch.tensor(flags, dtype=torch.float32)
        dist.all_reduce(numbers)
        return [value > 0 for value in numbers.tolist()]

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over the ranks, on the CPU."""
        if self.size > 1:
            tensor = tensor.to(self.device)
            dist.all_reduce(tensor)
        return tensor.cpu()

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their mean over the ranks; used for BatchNorm's running statistics."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= self.size

    def part(self, rows: Tensor) -> Tensor:
        """Return this rank's contiguous part of the rows."""
        if self.size == 1:
            return rows
        return rows.tensor_split(self.size)[self.rank]

    def places(self, count: int) -> slice:
        """Return the places of this rank's rows in a batch. A rank without rows gets the first one, for no weight."""
        return slice(self.rank, None, self.size) if self.rank < count else slice(0, 1)

    def rows_of_rank(self, batch: Tensor) -> Tensor:
        """Return this rank's rows of a batch."""
        return batch[self.places(len(batch))]

    def gather(self, part: Tensor, total: int) -> Tensor:
        """Concatenate the parts of all ranks, in order, on every rank's CPU; there are `total` rows in all."""
        return self._gather(part, total, keeps=True)

    def gather_to_leader(self, part: Tensor, total: int) -> Tensor:
        """Do the same on rank 0 alone; the others return no rows. For what would not fit the memory on every rank."""
        return self._gather(part, total, keeps=self.is_leader)

    def _gather(self, part: Tensor, total: int, *, keeps: bool) -> Tensor:
        if self.size == 1:
            return part
        lengths = [len(p) for p in torch.arange(total).tensor_split(self.size)]
        whole = part.new_empty((total if keeps else 0, *part.shape[1:]))
        rows = max(1, GATHER_VALUES // max(1, part[:1].numel()))
        for start in range(0, max(lengths), rows):
            width = min(rows, max(lengths) - start)
            block = part.new_zeros((width, *part.shape[1:]))
            mine = part[start : start + width]
            block[: len(mine)] = mine
            block = block.to(self.device)
            blocks = [torch.empty_like(block) for _ in lengths]
            dist.all_gather(blocks, block)
            first = start
            for received, length in zip(blocks if keeps else [], lengths, strict=False):
                count = max(0, min(width, length - start))
                whole[first : first + count] = received[:count].cpu()
                first += length
        return whole


@dataclass(frozen=True)
class TrainingSession(Session):
    """A session that trains: also the processes that take part."""

    processes: Processes = field(default_factory=Processes)
    deterministic: bool = False  # on a GPU: the same bits for the same seed

    @classmethod
    def join(cls, device_name: str, session: Session | None = None, *, deterministic: bool = False) -> TrainingSession:
        """Return the session with the processes that torchrun started, or with this process alone."""
        session = session or Session()
        return cls(session.watcher, session.stop, Processes.join(device_name), deterministic=deterministic)

    @property
    def device(self) -> torch.device:
        return self.processes.device


def _leave() -> None:
    """End the process group with the process."""
    if dist.is_initialized():
        dist.destroy_process_group()
