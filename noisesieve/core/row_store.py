"""Rows of numbers on disk by image content, appended in chunks with a checksum each: decoded pixels, and features.

The data file is one memory map of rows. The file of chunks beside it has one line of JSON per chunk: its place, the
contents of its rows, and the user's signature of these and of its bytes: no row stands for another content, even where
somebody else can write to the cache. A chunk counts only after its line was written, so a killed process loses at
most one chunk. Nothing is synchronised with the disk: what a power failure leaves half written has another signature.
Several processes may append to the same files; a row that two of them computed is there twice, which does no harm.
Files are opened without following links, and a folder of another user is not used. (Chunks of earlier versions, and of
users without a folder for their key, have a CRC-32 instead of a signature. They count in a private entry of a cache.)

Ours: no public store has checksums, appending by several processes, keys by content and one memory map at once.

The file of chunks is the truth. A sorted index is derived from it, so that a million rows open in a fraction of a
second: it only says where to look, and each chunk that is used is compared with its signed line.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import mmap
import os
import secrets
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from noisesieve.core.columns import HASH, Hashes
from noisesieve.core.records import Bools, Bytes, Ints
from noisesieve.core.untrusted import is_own, is_private, is_sealed, open_own, open_regular, seal

CHUNK = 128  # rows
KEY_BYTES = 16  # of a content's SHA-256 by which its row is found
INDEX_VERSION = 1
FORGOTTEN_BYTES = 2**26  # of a memory map that are read before its pages are forgotten
WORTH_AN_INDEX = 16_384  # rows of chunks that are parsed anew before the sorted index is written again

Keys = npt.NDArray[np.bytes_]


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
        self._sorted_index = file.with_suffix(".sorted")
        self._rows = 0  # rows of all chunks, as far as the index was read
        self._read_bytes = 0  # of the index
        self._lines: list[tuple[int, int]] = []  # by chunk: where its line begins in the index, and its length
        # By row: the sorted keys, the position of the row, and the number of its chunk; then rows not yet sorted in.
        self._keys: Keys = np.zeros(0, dtype=f"S{KEY_BYTES}")
        self._places: Ints = np.zeros(0, dtype=np.int64)
        self._numbers: Ints = np.zeros(0, dtype=np.int64)
        self._added: list[tuple[Keys, Ints, Ints]] = []
        self._sound: dict[int, tuple[int, Keys]] = {}  # verified chunks: first row, and the keys of all rows
        self._read_sorted_index()
        self._read_index()
        if sum(len(keys) for keys, _, _ in self._added) >= WORTH_AN_INDEX:
            self.write_sorted_index()

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
            begin, self._read_bytes = self._read_bytes, self._read_bytes + len(line)
            chunk = _read_line(line)
            if chunk is None or not 0 <= chunk.first <= stored - len(chunk.contents):
                continue  # a damaged line: its rows are computed again
            places = np.arange(chunk.first, chunk.first + len(chunk.contents))
            self._added.append((_keys_of(chunk.contents), places, np.full(len(places), len(self._lines))))
            self._lines.append((begin, len(line)))
            self._rows = max(self._rows, chunk.first + len(chunk.contents))

    def _read_sorted_index(self) -> None:
        """Read the derived index, unless it is not one of these chunks."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if not is_own(self.file.parent):
                return
            with open_regular(self._sorted_index, follow=False) as file:
                head = json.loads(file.readline(4096))
                rows, chunks = int(head["rows"]), int(head["chunks"])
                size = os.fstat(file.fileno()).st_size
                if head["version"] != INDEX_VERSION or size != file.tell() + rows * (KEY_BYTES + 16) + chunks * 16:
                    return
                keys = np.frombuffer(file.read(rows * KEY_BYTES), dtype=f"S{KEY_BYTES}")
                places, numbers = np.frombuffer(file.read(rows * 16), dtype=np.int64).reshape(2, rows)
                lines = np.frombuffer(file.read(chunks * 16), dtype=np.int64).reshape(chunks, 2)
            with open_regular(self._index, follow=False) as file:
                file.seek(int(lines[-1, 0]))
                last = file.read(int(lines[-1, 1]))
            with open_regular(self.file, follow=False) as data:
                stored = os.fstat(data.fileno()).st_size // self._row_bytes
            if hashlib.sha256(last).hexdigest() != head["last"] or not 0 <= int(head["end"]) <= stored:
                return
            self._keys, self._places, self._numbers = keys, places, numbers
            self._lines = [(int(begin), int(length)) for begin, length in lines]
            self._rows, self._read_bytes = int(head["end"]), int(lines[-1].sum())

    def write_sorted_index(self) -> None:
        """Write the derived index, so that the next process need not parse these chunks. It may fail."""
        self._sort()
        if not len(self._keys) or not self._lines:
            return
        temporary = self._sorted_index.with_name(f".{self._sorted_index.name}.{secrets.token_hex(4)}.tmp")
        with contextlib.suppress(OSError):
            with open_regular(self._index, follow=False) as file:
                file.seek(self._lines[-1][0])
                last = hashlib.sha256(file.read(self._lines[-1][1])).hexdigest()
            counts = {"rows": len(self._keys), "chunks": len(self._lines), "end": self._rows}
            try:
                with os.fdopen(open_own(temporary, os.O_WRONLY | os.O_EXCL), "wb") as out:
                    out.write(json.dumps({"version": INDEX_VERSION, "last": last, **counts}).encode() + b"\n")
                    for part in (self._keys, self._places, self._numbers, np.array(self._lines, dtype=np.int64)):
                        out.write(part.tobytes())
                temporary.replace(self._sorted_index)
            finally:
                temporary.unlink(missing_ok=True)

    def _sort(self) -> None:
        """Sort the added rows in. Of several rows with the same content the last one is found."""
        if self._added:
            parts = [(self._keys, self._places, self._numbers), *self._added]
            keys, places, numbers = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            order = np.argsort(keys, kind="stable")
            self._keys, self._places, self._numbers = keys[order], places[order], numbers[order]
            self._added = []

    def _find(self, keys: Keys) -> tuple[Ints, Bools]:
        """Return where each key is among the sorted ones, and whether it is there at all."""
        self._sort()
        if not len(self._keys):
            return np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.bool_)
        where = np.maximum(np.searchsorted(self._keys, keys, side="right") - 1, 0)
        return where, self._keys[where] == keys

    def prefixes(self) -> npt.NDArray[np.uint64]:
        """Return the first eight bytes of every content that has a row here, as ascending numbers."""
        self._sort()
        raw = self._keys.view(np.uint8).reshape(-1, KEY_BYTES)[:, :8]
        return np.ascontiguousarray(raw).view(">u8").reshape(-1).astype(np.uint64)

    def missing(self, hashes: Hashes) -> Bools:
        """Return (N,) which contents have no row here."""
        return ~self._find(_keys_of_column(hashes))[1]

    def drop_damaged(self, hashes: Hashes) -> int:
        """Verify the chunks that these contents need, and forget those that are damaged. Returns how many rows."""
        keys, lost = _keys_of_column(hashes), 0
        while True:  # an earlier row with the same content may take the place of a damaged one
            where, known = self._find(keys)
            where = where[known]
            order = np.argsort(self._numbers[where], kind="stable")
            wanted, places, numbers = keys[known][order], self._places[where][order], self._numbers[where][order]
            begins = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
            ends = [*begins, len(numbers)][1:]
            bad = []
            for begin, end in zip(begins, ends, strict=True):
                if not self._holds(int(numbers[begin]), wanted[begin:end], places[begin:end]):
                    bad.append(int(numbers[begin]))
            if not bad:
                return lost
            kept = ~np.isin(self._numbers, bad)
            lost += int((~kept).sum())
            self._keys, self._places, self._numbers = self._keys[kept], self._places[kept], self._numbers[kept]
            self._sorted_index.unlink(missing_ok=True)

    def _holds(self, number: int, keys: Keys, places: Ints) -> bool:
        """Return True if the rows of a chunk are the ones that were written, and those of these contents."""
        if number not in self._sound:
            chunk = self._read_chunk(number)
            if chunk is None or not self._is_sound(chunk):
                return False
            self._sound[number] = (chunk.first, _keys_of(chunk.contents))
        first, own = self._sound[number]
        offsets = places - first
        inside = (offsets >= 0) & (offsets < len(own))
        return bool(inside.all()) and bool((own[offsets] == keys).all())

    def _read_chunk(self, number: int) -> Chunk | None:
        """Return the signed line of a chunk."""
        if not 0 <= number < len(self._lines):
            return None
        begin, length = self._lines[number]
        try:
            with open_regular(self._index, follow=False) as file:
                file.seek(begin)
                return _read_line(file.read(length))
        except (OSError, ValueError):
            return None

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
            self._sound[len(self._lines) - 1] = (chunk.first, _keys_of(chunk.contents))

    def slots(self, hashes: Hashes) -> Ints:
        """Return the position of each content's row. Every content must have one."""
        where, known = self._find(_keys_of_column(hashes))
        if not known.all():
            raise KeyError(f"{int((~known).sum())} contents have no row in {self.file}")
        return self._places[where]

    def open(self) -> npt.NDArray[Any]:
        """Return all rows as a memory map, (rows, …)."""
        return open_rows(self.file, self._rows, shape=self.shape, dtype=self._dtype)


def open_rows(file: Path, rows: int, *, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the first rows of a data file as a memory map."""
    if rows == 0:
        return np.zeros((0, *shape), dtype=dtype)
    with open_regular(file, follow=False) as opened:
        return np.memmap(opened, dtype=dtype, mode="r", shape=(rows, *shape))


def forget_pages(rows: npt.NDArray[Any]) -> None:
    """Let the pages of a memory map that were read no longer count as memory of this process."""
    mapped = getattr(rows, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _read_line(line: bytes) -> Chunk | None:
    try:
        entry = json.loads(line)
        contents = list(map(str, entry["contents"]))
        if not all(map(HASH.fullmatch, contents)):
            return None
        mark, checksum = entry.get("seal"), entry.get("crc32")
        return Chunk(int(entry["first"]), contents, None if mark is None else str(mark), checksum)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _keys_of(contents: Sequence[str]) -> Keys:
    return _first_bytes(np.frombuffer(bytes.fromhex("".join(contents)), dtype=np.uint8).reshape(len(contents), -1))


def _keys_of_column(hashes: Hashes) -> Keys:
    return _first_bytes(hashes.raw())


def _first_bytes(values: Bytes) -> Keys:
    return np.ascontiguousarray(values[:, :KEY_BYTES]).view(f"S{KEY_BYTES}").reshape(-1)
