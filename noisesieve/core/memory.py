"""The memory of this process and machine: what is free, and how to give back what is not used any more."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

MAPPED_SHARE = 0.4  # of the free memory, from which an array is mapped: there may be two


def room_for(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return zeros in float32: in memory or, where they would take most of what is free, in a mapped file.

    The system then moves to the disk what is not in use, instead of ending the process.
    """
    size, free = 4 * math.prod(shape), available_memory()
    if free is None or size < free * MAPPED_SHARE:
        return np.zeros(shape, dtype=np.float32)
    with tempfile.TemporaryFile(prefix="noisesieve-") as file:
        file.truncate(size)
        return np.memmap(file, dtype=np.float32, mode="r+", shape=shape)


def release_memory() -> None:
    """Return memory that was freed, and that Arrow and the C library keep for later, to the system.

    Between two stages: the next one needs arrays of other sizes, and what is kept would add up to hundreds of MB.
    """
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def available_memory() -> int | None:
    """Return how many bytes this process can still get without swapping; None where the system does not say.

    The smaller one of what the machine has, and of what the limit of a container leaves.
    """
    free = _machine()
    limits = [left for left in (_control_group_2(), _control_group_1()) if left is not None]
    return min([free, *limits]) if free is not None else None


def _machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _control_group_2() -> int | None:
    return _left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current")


def _control_group_1() -> int | None:
    folder = "/sys/fs/cgroup/memory"
    return _left(f"{folder}/memory.limit_in_bytes", f"{folder}/memory.usage_in_bytes")


def _left(limit: str, used: str) -> int | None:
    """Return what a control group leaves; None without a limit."""
    try:
        return max(0, int(Path(limit).read_text(encoding="ascii")) - int(Path(used).read_text(encoding="ascii")))
    except (OSError, ValueError):  # there is none, or it says "max"
        return None
