"""Decoded pixels on disk: a uint8 memory map at training size, keyed by content and decoder, reused by later runs."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.files import digest, sync_folder
from noisesieve.pixels.decode import DECODER_VERSION
from noisesieve.records import Bytes, Ints


@dataclass(frozen=True)
class CachedPixels:
    """Pictures in one memory map; `slots` says where each readable row's lie."""

    file: Path
    size: int
    slots: Ints

    def __len__(self) -> int:
        return len(self.slots)

    def batches(self, order: Sequence[Ints]) -> Iterator[Bytes]:
        """For each array of rows its pictures (B, S, S, 3)."""
        store = open_store(self.file, self.size)
        for rows in order:
            yield store[self.slots[rows]]


def open_store(file: Path, size: int) -> Bytes:
    """The memory map (slots, S, S, 3) of a finished store."""
    return np.memmap(file, dtype=np.uint8, mode="r").reshape(-1, size, size, 3)


def make_store(file: Path, slots: int, size: int) -> None:
    """An empty store of the right length; disk is taken as it is filled."""
    with file.open("wb") as blank:
        blank.truncate(max(1, slots) * size * size * 3)


@dataclass(frozen=True)
class Entry:
    """One finished entry of the cache: the contents it holds, a slot each, and which of them cannot be decoded."""

    folder: Path
    sha256: list[str]
    status: list[str]
    width: list[int]
    height: list[int]

    @property
    def file(self) -> Path:
        return self.folder / "pixels.u8"


class Cache:
    """Entries for one size and one decoder. Folders appear whole: built beside, then renamed."""

    def __init__(self, folder: Path, *, size: int, max_pixels: int) -> None:
        self._folder = folder
        self._size = size
        key = digest({"size": size, "max_pixels": max_pixels, "decoder": DECODER_VERSION})
        self._prefix = f"{size}px-{key[:12]}-"

    def find(self, contents: set[str]) -> Entry | None:
        """An entry that holds all these contents (it may hold more), or None."""
        if not self._folder.is_dir():
            return None
        for folder in sorted(self._folder.glob(self._prefix + "*")):
            try:
                table = pq.read_table(folder / "contents.parquet")
                right_length = (folder / "pixels.u8").stat().st_size == max(1, len(table)) * self._size**2 * 3
            except (OSError, pa.ArrowException):
                continue  # not ours, or damaged: it is simply not there
            entry = Entry(folder, *(table[name].to_pylist() for name in ("sha256", "status", "width", "height")))
            if right_length and contents <= set(entry.sha256):
                os.utime(folder)  # last use, for whoever clears the cache
                return entry
        return None

    def build(self) -> Path:
        """A fresh folder to build an entry in; what dead processes left half-built is removed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for stale in self._folder.glob(".building-*"):
            if not _alive(int(stale.name.split("-")[1])):
                shutil.rmtree(stale, ignore_errors=True)
        folder = self._folder / f".building-{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir()
        return folder

    def keep(self, building: Path, entry: Entry) -> Entry:
        """Make a built folder an entry; where another process was faster, use that one."""
        table = pa.table(
            {"sha256": entry.sha256, "status": entry.status, "width": entry.width, "height": entry.height},
        )
        pq.write_table(table, building / "contents.parquet")
        content = hashlib.sha256("".join(entry.sha256).encode()).hexdigest()
        target = self._folder / f"{self._prefix}{content[:16]}"
        try:
            building.rename(target)
        except OSError:
            shutil.rmtree(building, ignore_errors=True)
        sync_folder(self._folder)
        return Entry(target, entry.sha256, entry.status, entry.width, entry.height)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
