"""Which contents need not be decoded because the cache has them, in a form that is cheap for worker processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

DIGITS = 16  # of a content hash; two contents that share them cost one later decoding, and do no harm


@dataclass(frozen=True)
class KnownContents:
    """The beginnings of content hashes as sorted numbers: 8 bytes for each."""

    numbers: npt.NDArray[np.uint64]

    @classmethod
    def load(cls, file: str | None) -> KnownContents:
        """Open what `save` wrote; None: no contents."""
        return cls(np.zeros(0, dtype=np.uint64) if file is None else np.load(file, mmap_mode="r"))

    def save(self, file: Path) -> None:
        """Write them for worker processes."""
        np.save(file, self.numbers)

    def __contains__(self, sha256: str) -> bool:
        wanted = np.uint64(int(sha256[:DIGITS], 16))
        position = int(np.searchsorted(self.numbers, wanted))
        return position < len(self.numbers) and bool(self.numbers[position] == wanted)
