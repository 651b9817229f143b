"""Rows of numbers on disk by image content, appended in chunks with a checksum each: decoded pixels, and features.

The data file is one memory map of rows. The file of chunks beside it has one line of JSON per chunk: its place, the
contents of its rows and the CRC-32 of its bytes. A chunk counts only after its line was written, so a killed process
loses at most one chunk. Nothing is synchronised with the disk: what a power failure leaves half written has another
checksum. Several processes may append to the same files; a row that two of them computed is there twice, which does no
harm.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from noisesieve.core.records import Ints

CHUNK = 128  # rows


@dataclass(frozen=True)
class Chunk:
    """Rows that were appended together."""

    first: int  # position of its first row
    contents: list[str]
    checksum: int


class RowFile:
    """The rows of one kind. `file` is the data; `shape` and `dtype` are those of a row."""

    def __init__(self, file: Path, *, shape: tuple[int, ...], dtype: str) -> None:
        self.file, self.shape = file, shape
        self._dtype = np.dtype(dtype)
        self._row_bytes = math.prod(shape) * self._dtype.itemsize
        self._index = file.with_suffix(".chunks")
        self._chunks: list[Chunk] = []
        self._rows = 0  # rows of all chunks, as far as the index was read
        self._read_bytes = 0  # of the index
        self._slots: dict[str, tuple[int, int]] = {}  # content → position of its row, number of its chunk
        self._sound: set[int] = set()  # chunks whose checksum was verified, or that were written here
        self._read_index()

    def _read_index(self) -> None:
        """Read the lines that were added since. An unfinished last line is of a killed process and does not count."""
        try:
            with self._index.open("rb") as file:
                file.seek(self._read_bytes)
                added = file.read()
        except OSError:
            return  # there is none, or it cannot be read: then its rows are computed again
        stored = self.file.stat().st_size // self._row_bytes if self.file.exists() else 0
        for line in added[: added.rfind(b"\n") + 1].splitlines(keepends=True):
            self._read_bytes += len(line)
            chunk = _read_line(line)
            if chunk is None or not 0 <= chunk.first <= stored - len(chunk.contents):
                continue  # a damaged line: its rows are computed again
            number = len(self._chunks)
            self._chunks.append(chunk)
            self._slots |= {content: (chunk.first + i, number) for i, content in enumerate(chunk.contents)}
            self._rows = max(self._rows, chunk.first + len(chunk.contents))

    def contents(self) -> Iterable[str]:
        """Return the contents that have a row here."""
        return self._slots.keys()

    def missing(self, contents: Iterable[str]) -> set[str]:
        """Return the contents that have no row here."""
        return {content for content in contents if content not in self._slots}

    def drop_damaged(self, contents: Iterable[str]) -> int:
        """Verify the chunks that these contents need, and forget those that are damaged. Returns how many rows."""
        needed = {self._slots[content][1] for content in contents if content in self._slots} - self._sound
        lost = 0
        for number in sorted(needed):
            chunk = self._chunks[number]
            if self._checksum_of(chunk) == chunk.checksum:
                self._sound.add(number)
                continue
            for content in chunk.contents:
                if self._slots.get(content, (0, -1))[1] == number:
                    del self._slots[content]
                    lost += 1
        return lost

    def _checksum_of(self, chunk: Chunk) -> int | None:
        try:
            with self.file.open("rb") as file:
                file.seek(chunk.first * self._row_bytes)
                return zlib.crc32(file.read(len(chunk.contents) * self._row_bytes))
        except OSError:
            return None  # counts as damaged

    def append(self, contents: Sequence[str], values: npt.NDArray[Any]) -> None:
        """Add a chunk: its bytes first, then its line in the index."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        data = values.astype(self._dtype, copy=False).tobytes()
        with FileLock(self.file.parent / ".lock"):
            if self._read_bytes and not self._index.exists():
                raise FileNotFoundError(2, "the cache was cleared while it was in use", str(self._index))
            self._read_index()  # other processes may have added chunks
            with self.file.open("ab") as file:
                file.truncate(self._rows * self._row_bytes)  # what a killed process left behind
                file.write(data)
            entry = {"first": self._rows, "contents": list(contents), "crc32": zlib.crc32(data)}
            line = json.dumps(entry).encode() + b"\n"
            with self._index.open("ab") as file:
                file.truncate(self._read_bytes)
                file.write(line)
            self._read_index()
            self._sound.add(len(self._chunks) - 1)

    def slots(self, contents: Sequence[str]) -> Ints:
        """Return the position of each content's row."""
        return np.array([self._slots[content][0] for content in contents], dtype=np.int64)

    def open(self) -> npt.NDArray[Any]:
        """Return all rows as a memory map, (rows, …)."""
        return open_rows(self.file, self._rows, shape=self.shape, dtype=self._dtype)


def open_rows(file: Path, rows: int, *, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the first rows of a data file as a memory map."""
    if rows == 0:
        return np.zeros((0, *shape), dtype=dtype)
    return np.memmap(file, dtype=dtype, mode="r", shape=(rows, *shape))


def _read_line(line: bytes) -> Chunk | None:
    try:
        entry = json.loads(line)
        return Chunk(int(entry["first"]), [str(content) for content in entry["contents"]], int(entry["crc32"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
