"""What was made of pictures, on disk: memory maps keyed by content and maker, reused by later runs.

Decoded pixels (uint8, at training size) and features (float16, of one backbone) are kept alike.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from noisesieve.errors import OutputError
from noisesieve.files import sync_file, sync_folder
from noisesieve.pixels.decode import DECODER_VERSION
from noisesieve.records import Bytes, Ints

PENDING = ""  # the status of a slot that no worker has filled yet
COPY_BLOCK = 4096
FEATURES = "features.f16"


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
        for rows in order:
            yield self._store[self.slots[rows]]

    @functools.cached_property
    def _store(self) -> Bytes:
        """Opened once: who clears the cache meanwhile takes nothing from a scan that runs."""
        return open_store(self.file, pixel_bytes(1, self.size)).reshape(-1, self.size, self.size, 3)


def pixel_bytes(count: int, size: int) -> int:
    """How much a memory map of `count` pictures takes."""
    return count * size * size * 3


def open_store(file: Path, item_bytes: int, *, write: bool = False) -> Bytes:
    """The memory map (slots, item_bytes) of a store."""
    return np.memmap(file, dtype=np.uint8, mode="r+" if write else "r").reshape(-1, item_bytes)


def make_store(file: Path, slots: int, item_bytes: int) -> None:
    """An empty store, its disk space taken now: a disk that fills later would kill the workers one by one."""
    length = max(1, slots) * item_bytes
    try:
        with file.open("wb") as blank:
            blank.truncate(length)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(blank.fileno(), 0, length)
    except OSError as error:
        raise OutputError(
            f"{file.parent}: no room for {length / 2**20:.0f} MiB: {error.strerror}.",
            "Choose another --cache-dir, or lower --cache-budget to stream.",
        ) from error


@dataclass(frozen=True)
class Entry:
    """Contents with a slot each. A slot is made, cannot be made (its status says why), or is pending."""

    folder: Path
    sha256: list[str]
    status: list[str]
    store: str = "pixels.u8"

    @property
    def file(self) -> Path:
        return self.folder / self.store

    def known(self) -> dict[str, int]:
        """The slot of every content that is not pending."""
        return {sha: i for i, (sha, status) in enumerate(zip(self.sha256, self.status, strict=True)) if status}


class Cache:
    """Entries of one kind, from one maker. Folders appear whole: built beside, then renamed."""

    def __init__(self, folder: Path, *, prefix: str, item_bytes: int, store: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._item_bytes = item_bytes
        self._store = store
        self._lock: FileLock | None = None

    @classmethod
    def of_pixels(cls, folder: Path, *, size: int, max_pixels: int) -> Cache:
        """Decoded pictures of one size."""
        prefix = f"{size}px-v{DECODER_VERSION}-{max_pixels:x}-"
        return cls(folder, prefix=prefix, item_bytes=pixel_bytes(1, size), store="pixels.u8")

    @classmethod
    def of_features(cls, folder: Path, *, size: int, max_pixels: int, maker: str, item_bytes: int) -> Cache:
        """What the backbone `maker` sees in pictures of one size."""
        prefix = f"{size}px-v{DECODER_VERSION}-{max_pixels:x}-{maker}-"
        return cls(folder, prefix=prefix, item_bytes=item_bytes, store=FEATURES)

    def best(self, contents: set[str]) -> Entry | None:
        """The entry that knows most of these contents, or None."""
        best: tuple[int, Entry] | None = None
        for entry in self._entries():
            overlap = len(contents & entry.known().keys())
            if overlap and (best is None or overlap > best[0]):
                best = overlap, entry
        if best is None:
            return None
        os.utime(best[1].folder)  # last use, for whoever clears the cache
        return best[1]

    def build(self) -> Path:
        """A fresh, locked folder to build an entry in; what dead processes left half-built is removed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            for stale in self._folder.glob(".building-*"):
                try:
                    with FileLock(stale / "lock", blocking=False):
                        shutil.rmtree(stale, ignore_errors=True)
                except (Timeout, OSError):
                    continue  # its builder lives
            folder = self._folder / f".building-{secrets.token_hex(6)}"
            folder.mkdir()
            self._lock = FileLock(folder / "lock", blocking=False)
            self._lock.acquire()
        return folder

    def _alone(self) -> FileLock:
        """Nobody else adds or removes a folder meanwhile."""
        return FileLock(self._folder / ".lock")

    def keep(self, building: Entry) -> Entry:
        """Make a built folder an entry, in the place of an older one with the same contents."""
        pq.write_table(
            pa.table({"sha256": building.sha256, "status": building.status}), building.folder / "contents.parquet"
        )
        for name in (building.store, "contents.parquet"):
            sync_file(building.folder / name)
        content = hashlib.sha256("".join(building.sha256).encode()).hexdigest()
        target = self._folder / f"{self._prefix}{content[:16]}"
        old = self._folder / f".building-{secrets.token_hex(6)}"
        with self._alone():
            self.release()
            (building.folder / "lock").unlink(missing_ok=True)
            if target.exists():
                target.rename(old)
            building.folder.rename(target)
        shutil.rmtree(old, ignore_errors=True)
        sync_folder(self._folder)
        return Entry(target, building.sha256, building.status, building.store)

    def release(self) -> None:
        """Give the building folder's lock back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _entries(self) -> Iterator[Entry]:
        for folder in sorted(self._folder.glob(self._prefix + "*")) if self._folder.is_dir() else ():
            try:
                table = pq.read_table(folder / "contents.parquet", columns=["sha256", "status"])
                length = (folder / self._store).stat().st_size
            except (OSError, pa.ArrowException):
                continue  # not ours, or damaged: it is simply not there
            if length == max(1, len(table)) * self._item_bytes:
                yield Entry(folder, table["sha256"].to_pylist(), table["status"].to_pylist(), self._store)


@dataclass(frozen=True)
class Kept:
    """An entry of the cache, for people."""

    name: str
    kind: str  # pixels or features
    size: int  # pixels on a side
    pictures: int
    bytes: int
    last_used: str  # UTC, ISO


def entries(folder: Path) -> list[Kept]:
    """What lies in a cache folder, longest unused first; what is not ours is not listed."""
    found = []
    for place in sorted(folder.glob("*px-v*-*")) if folder.is_dir() else ():
        try:
            pictures = pq.read_metadata(place / "contents.parquet").num_rows
            size = int(place.name.partition("px-")[0])
            used = datetime.datetime.fromtimestamp(place.stat().st_mtime, tz=datetime.UTC)
        except (OSError, pa.ArrowException, ValueError):
            continue
        held = sum(file.stat().st_size for file in place.iterdir() if file.is_file())
        kind = "features" if (place / FEATURES).exists() else "pixels"
        found.append(Kept(place.name, kind, size, pictures, held, used.isoformat(timespec="seconds")))
    return sorted(found, key=lambda entry: entry.last_used)


def clear(folder: Path, kept: Sequence[Kept], *, older_than: float | None) -> list[Kept]:
    """Remove entries (those unused for `older_than` seconds); running scans keep the map they have open."""
    now, gone = datetime.datetime.now(tz=datetime.UTC), []
    for entry in kept:
        idle = (now - datetime.datetime.fromisoformat(entry.last_used)).total_seconds()
        if older_than is None or idle > older_than:
            shutil.rmtree(folder / entry.name, ignore_errors=True)
            if not (folder / entry.name).exists():
                gone.append(entry)
    return gone


def copy_known(source: Entry, target: Entry, item_bytes: int) -> Entry:
    """Take over into a fresh entry what another has made; the rest stays pending."""
    known = source.known()
    pairs = [(known[sha], i) for i, sha in enumerate(target.sha256) if sha in known]
    status = list(target.status)
    old, new = open_store(source.file, item_bytes), open_store(target.file, item_bytes, write=True)
    for start in range(0, len(pairs), COPY_BLOCK):
        block = np.array(pairs[start : start + COPY_BLOCK])
        new[block[:, 1]] = old[block[:, 0]]
    for slot, i in pairs:
        status[i] = source.status[slot]
    return replace(target, status=status)
