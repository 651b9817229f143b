"""The device that a run computes on, its precision, and determinism."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from noisesieve.core.errors import UsageError

Key = TypeVar("Key")


def choose_device(name: str) -> torch.device:
    """Return the device for `--device`; `auto` takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return torch.device(name)


def has_device(name: str) -> bool:
    """Return True if this machine has such a device."""
    kind = name.partition(":")[0]
    if kind == "cuda":
        return torch.cuda.is_available()
    return kind != "mps" or torch.backends.mps.is_available()


def require_device(name: str) -> None:
    """Refuse a device that this machine does not have."""
    if not has_device(name):
        kind = {"cuda": "CUDA", "mps": "Metal"}[name]
        raise UsageError(
            f"--device {name}: PyTorch finds no {kind} device on this machine.", "Leave --device out, or choose cpu."
        )


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers for mallopt
_DEFAULT_THRESHOLD, _KEPT = 128 * 2**10, 2**30


@contextlib.contextmanager
def kept_memory(device: torch.device) -> Iterator[None]:
    """Let the C library keep freed memory while a network runs on the CPU, instead of returning it after every layer.

    A forward pass allocates and frees the same large blocks again and again; getting them from the system each time
    costs a third of it. Afterwards glibc's defaults are set again and the memory is returned. Other C libraries have no
    such call and are left alone.
    """
    libc = ctypes.CDLL(None) if device.type == "cpu" else None
    if libc is None or not (hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim")):
        yield
        return
    try:
        for threshold in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            libc.mallopt(threshold, _KEPT)
        yield
    finally:
        for threshold in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            libc.mallopt(threshold, _DEFAULT_THRESHOLD)
        libc.malloc_trim(0)


class Precision:
    """bfloat16 on GPUs that support it, float16 with a gradient scaler on older ones, float32 elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.dtype = torch.float32
        if device.type == "cuda":
            modern = torch.cuda.get_device_capability(device) >= (8, 0)
            self.dtype = torch.bfloat16 if modern else torch.float16
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Return the region in which the network may run in half precision. Heads and losses run in float32."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def in_float64_on(logits: Tensor) -> Tensor:
    """Return a tensor in float64: on its device, or on the CPU where Metal has none."""
    return logits.cpu().double() if logits.device.type == "mps" else logits.double()


def read_behind(launched: Iterable[tuple[Key, tuple[Tensor, ...]]]) -> Iterator[tuple[Key, tuple[Tensor, ...]]]:
    """Yield the results of launched work on the CPU, each read after the next was launched: the device never idles."""
    waiting: tuple[Key, tuple[Tensor, ...]] | None = None
    for item in launched:
        if waiting is not None:
            yield waiting[0], tuple(tensor.cpu() for tensor in waiting[1])
        waiting = item
    if waiting is not None:
        yield waiting[0], tuple(tensor.cpu() for tensor in waiting[1])


def prepare_device(device: torch.device, *, deterministic: bool) -> None:
    """Choose how a GPU computes: with the fastest kernels or, if wanted, with the same bits for the same seed.

    On a CPU the same seed always gives the same bits.
    """
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = deterministic
        torch.backends.cudnn.benchmark = not deterministic
        torch.set_float32_matmul_precision("high")
