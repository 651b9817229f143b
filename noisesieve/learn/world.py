"""The ranks of a `torchrun`: they split the rows, add their gradients, and share one view of the dataset.

One process alone is a world of size one, and every method is then almost nothing.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

PATIENCE = datetime.timedelta(minutes=10)  # rank 0 may decode for long while the others wait: see `wait`


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
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
        if device.type == "cuda":
            device = torch.device("cuda", dist.get_node_local_rank())
            torch.cuda.set_device(device)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    def leave(self) -> None:
        """End the process group, where there is one."""
        if self.size > 1:
            dist.destroy_process_group()

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, document: Any) -> Any:
        """Rank 0's JSON document, on every rank. Others wait as long as rank 0 needs."""
        if self.size == 1:
            return document
        store = dist.distributed_c10d._get_default_store()
        self._shares = getattr(self, "_shares", 0) + 1
        key = f"noisesieve/{self._shares}"
        if self.leads:
            store.set(key, json.dumps(document))
            return document
        store.wait([key], datetime.timedelta(days=7))
        return json.loads(store.get(key))

    def add_gradients(self, parameters: Sequence[nn.Parameter], flag: bool) -> bool:
        """Sum gradients over the ranks in one exchange; True on every rank if any raised its flag."""
        if self.size == 1:
            return flag
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([*(g.reshape(-1).float() for g in grads), torch.tensor([float(flag)], device=self.device)])
        dist.all_reduce(flat)
        start = 0
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = flat[start : start + grad.numel()].view_as(grad).to(grad.dtype)
            start += grad.numel()
        return bool(flat[-1] > 0)

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
        """All ranks' parts, in order, on every rank: (total, K) from this rank's (n, K)."""
        if self.size == 1:
            return part
        longest = -(-total // self.size)
        padded = part.new_zeros((longest, *part.shape[1:])).to(self.device)
        padded[: len(part)] = part.to(self.device)
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        lengths = [len(p) for p in torch.arange(total).tensor_split(self.size)]
        return torch.cat([p[:length] for p, length in zip(parts, lengths, strict=True)]).cpu()


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
