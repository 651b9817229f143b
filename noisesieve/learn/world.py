"""The ranks of a `torchrun`: they split the rows, add their gradients, and share one view of the dataset.

One process alone is a world of size one, and every method is then almost nothing.
"""

from __future__ import annotations

import atexit
import datetime
import itertools
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

PATIENCE = datetime.timedelta(minutes=10)  # for one exchange; while rank 0 decodes, the others wait in `share`
GATHER_ROWS = 65_536  # a block of scores on its way: all of them at once may not fit the device


_SHARES = itertools.count()  # over every world of this process: a second one meets the store of the first


class World:
    """Who takes part in this run."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank = rank
        self.size = size
        self.device = device or torch.device("cpu")

    @classmethod
    def join(cls, device_name: str) -> World:
        """The world torchrun started, or one of size one."""
        device = choose_device(device_name)
        if not dist.is_torchelastic_launched():
            return cls(device=device)
        if device.type == "mps":  # gloo cannot exchange Metal tensors
            device = torch.device("cpu")
        if device.type == "cuda":
            device = torch.device("cuda", dist.get_node_local_rank())
            torch.cuda.set_device(device)
        if not dist.is_initialized():  # a second stage of the same process stays among the same ranks
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
            atexit.register(_leave)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, text: str, pause: Callable[[], None] = lambda: None) -> str:
        """A short text of rank 0's, on every rank. The others wait as long as rank 0 needs."""
        if self.size == 1:
            return text
        store = dist.distributed_c10d._get_default_store()
        key = f"noisesieve/{next(_SHARES)}"
        if self.leads:
            store.set(key, text)
            return text
        while not store.check([key]):
            pause()  # a signal must find its way in
            time.sleep(0.1)
        return str(store.get(key).decode())

    def add_gradients(self, parameters: Sequence[nn.Parameter], extras: Sequence[float]) -> list[float]:
        """Sum gradients over the ranks, and a few numbers with them, in one exchange."""
        if self.size == 1:
            return list(extras)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        numbers = torch.tensor(extras, dtype=torch.float32, device=self.device)
        flat = torch.cat([*(g.reshape(-1).float() for g in grads), numbers])
        dist.all_reduce(flat)
        start = 0
        for parameter, grad in zip(parameters, grads, strict=True):
            # Copied, not viewed: a fused optimizer wants gradients laid out in memory as their parameters are.
            grad.copy_(flat[start : start + grad.numel()].view_as(grad))
            parameter.grad = grad
            start += grad.numel()
        return [float(value) for value in flat[start:]]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks."""
        if self.size > 1:
            tensor = tensor.to(self.device)
            dist.all_reduce(tensor)
        return tensor.cpu()

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace floating tensors by their mean over the ranks: BatchNorm's running statistics."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= self.size

    def part(self, rows: Tensor) -> Tensor:
        """This rank's contiguous part of some rows."""
        if self.size == 1:
            return rows
        return rows.tensor_split(self.size)[self.rank]

    def gather(self, part: Tensor, total: int) -> Tensor:
        """All ranks' parts, in order, on every rank's CPU: `total` rows from this rank's part of them."""
        if self.size == 1:
            return part
        lengths = [len(p) for p in torch.arange(total).tensor_split(self.size)]
        collected: list[list[Tensor]] = [[] for _ in lengths]
        for start in range(0, max(lengths), GATHER_ROWS):
            width = min(GATHER_ROWS, max(lengths) - start)
            block = part.new_zeros((width, *part.shape[1:]))
            mine = part[start : start + width]
            block[: len(mine)] = mine
            block = block.to(self.device)
            blocks = [torch.empty_like(block) for _ in lengths]
            dist.all_gather(blocks, block)
            for rank, received in enumerate(blocks):
                collected[rank].append(received.cpu())
        return torch.cat([torch.cat(blocks)[:length] for blocks, length in zip(collected, lengths, strict=True)])


def _leave() -> None:
    """End the process group with the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def choose_device(name: str) -> torch.device:
    """The device that `--device` means; `auto` takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return torch.device(name)


def device_problem(name: str) -> str | None:
    """Why this device cannot be used here, or None."""
    if name == "cuda" and not torch.cuda.is_available():
        return "--device cuda: PyTorch sees no CUDA device here."
    if name == "mps" and not torch.backends.mps.is_available():
        return "--device mps: this machine has no Metal device that PyTorch can use."
    return None
