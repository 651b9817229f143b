"""Rows of numbers on disk by image content, appended in chunks with a checksum each: decoded pixels, and features.

The data file is one memory map of rows. The file of chunks beside it has one line of JSON per chunk: its place, the
contents of its rows, and the user's signature of these and of its bytes: no row stands for another content, even where
somebody else can write to the cache. A chunk counts only after its line was written, so a killed process loses at
most one chunk. Nothing is synchronised with the disk: what a power failure leaves half written has another signature.
Several processes may append to the same files; a row that two of them computed is there twice, which does no harm.
Files are opened without following links, and a folder of another user is not used. (Chunks of earlier versions, and of
users without a folder for their key, have a CRC-32 instead of a signature. They count in a private entry of a cache.)
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from noisesieve.core.records import Ints
from noisesieve.core.untrusted import is_own, is_private, is_sealed, open_own, open_regular, seal

CHUNK = 128  # rows
_HASHES = re.compile(r"[0-9a-f]{64}(,[0-9a-f]{64})*")  # a content is known by its SHA-256


@dataclass(frozen=True)
class Chunk:
    """Rows that were appended together."""

    first: int  # position of its first row
    contents: list[str]
    seal: str | None  # None: of an earlier version
    checksum: int | None

    @property
    def head(self) -> bytes:
        """What is signed beside the bytes of the rows."""
        return json.dumps([self.first, self.contents]).encode()


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
            if not is_own(self.file.parent):
                return  # of another user, or a link
            with open_regular(self._index, follow=False) as file:
                file.seek(self._read_bytes)
                added = file.read()
            with open_regular(self.file, follow=False) as data:
                stored = os.fstat(data.fileno()).st_size // self._row_bytes
        except OSError:
            return  # there is none, or it cannot be read: then its rows are computed again
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
            if self._is_sound(chunk):
                self._sound.add(number)
                continue
            for content in chunk.contents:
                if self._slots.get(content, (0, -1))[1] == number:
                    del self._slots[content]
                    lost += 1
        return lost

    def _is_sound(self, chunk: Chunk) -> bool:
        """Return True if the rows of a chunk are the ones that were written for its contents."""
        try:
            with open_regular(self.file, follow=False) as file:
                file.seek(chunk.first * self._row_bytes)
                data = file.read(len(chunk.contents) * self._row_bytes)
            if chunk.seal is not None:
                return is_sealed(chunk.seal, self._name, chunk.head, data)
            return self._is_private_entry() and zlib.crc32(data) == chunk.checksum
        except OSError:
            return False

    def _is_private_entry(self) -> bool:
        """Return True for an entry of a cache that nobody else can write to; never for the scratch of a run folder."""
        return "px-v" in self.file.parent.name and is_private(self.file.parent)

    @property
    def _name(self) -> bytes:
        """What distinguishes these rows from those of other files: pixels of another size, say."""
        return json.dumps([self.file.parent.name, self.file.name, self.shape, self._dtype.str]).encode()

    def append(self, contents: Sequence[str], values: npt.NDArray[Any]) -> None:
        """Add a chunk: its bytes first, then its line in the index."""
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not is_own(self.file.parent):
            raise PermissionError(errno.EPERM, "a link, or of another user", str(self.file.parent))
        data = values.astype(self._dtype, copy=False).tobytes()
        with FileLock(self.file.parent / ".lock", mode=0o600):
            if self._read_bytes and not self._index.exists():
                raise FileNotFoundError(2, "the cache was cleared while it was in use", str(self._index))
            self._read_index()  # other processes may have added chunks
            with os.fdopen(open_own(self.file, os.O_RDWR | os.O_APPEND), "ab") as file:
                file.truncate(self._rows * self._row_bytes)  # what a killed process left behind
                file.write(data)
            chunk = Chunk(self._rows, list(contents), None, None)
            mark = seal(self._name, chunk.head, data)
            proof = {"crc32": zlib.crc32(data)} if mark is None else {"seal": mark}
            line = json.dumps({"first": chunk.first, "contents": chunk.contents, **proof}).encode() + b"\n"
            with os.fdopen(open_own(self._index, os.O_RDWR | os.O_APPEND), "ab") as file:
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
    with open_regular(file, follow=False) as opened:
        return np.memmap(opened, dtype=dtype, mode="r", shape=(rows, *shape))


def _read_line(line: bytes) -> Chunk | None:
    try:
        entry = json.loads(line)
        contents = list(map(str, entry["contents"]))
        if not _HASHES.fullmatch(",".join(contents)):
            return None
        mark, checksum = entry.get("seal"), entry.get("crc32")
        return Chunk(int(entry["first"]), contents, None if mark is None else str(mark), checksum)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
