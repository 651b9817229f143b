"""The cache on disk: memory maps of decoded pixels, keyed by image content."""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from noisesieve.core.errors import OutputError
from noisesieve.core.files import sync_file, sync_folder
from noisesieve.core.progress import Session
from noisesieve.core.records import Bytes, Ints
from noisesieve.core.settings import PixelSettings
from noisesieve.pixels.image import DECODER_VERSION

PENDING = ""  # the status of a slot that is not filled yet
COPY_BLOCK = 4096


def default_cache_dir() -> Path:
    """Return the cache folder that is used without `--cache-dir`."""
    return user_cache_path("noisesieve") / "pixels"


def cache_folder(settings: PixelSettings, session: Session) -> Path | None:
    """Return the cache folder; None if caching is off or the folder is not writable."""
    if not settings.cache:
        return None
    folder = settings.cache_dir or default_cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
        reason = "not writable"
    except OSError as error:
        reason = str(error.strerror)
    session.warn(f"{folder}: {reason}: this run is not cached (--cache-dir chooses another folder).")
    return None


@dataclass(frozen=True)
class CachedPixels:
    """Images in one memory map; `slots` are the positions of the readable rows in it."""

    file: Path
    size: int
    slots: Ints

    def __len__(self) -> int:
        return len(self.slots)

    def batches(self, order: Sequence[Ints]) -> Iterator[Bytes]:
        """Yield the images (B, S, S, 3) of each array of rows."""
        for rows in order:
            yield self._store[self.slots[rows]]

    @functools.cached_property
    def _store(self) -> Bytes:
        """Opened once: a running scan keeps its map even if the cache is cleared meanwhile."""
        return open_store(self.file, pixel_bytes(1, self.size)).reshape(-1, self.size, self.size, 3)


def pixel_bytes(count: int, size: int) -> int:
    """Return the size of a memory map of `count` images."""
    return count * size * size * 3


def open_store(file: Path, item_bytes: int, *, write: bool = False) -> Bytes:
    """Open the memory map of a store, (slots, item_bytes)."""
    return np.memmap(file, dtype=np.uint8, mode="r+" if write else "r").reshape(-1, item_bytes)


def make_store(file: Path, slots: int, item_bytes: int) -> None:
    """Create an empty store and allocate its disk space now: a full disk would later kill the workers."""
    length = max(1, slots) * item_bytes
    try:
        with file.open("wb") as blank:
            blank.truncate(length)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(blank.fileno(), 0, length)
    except OSError as error:
        raise OutputError(
            f"{file.parent}: no space for {length / 2**20:.0f} MiB: {error.strerror}.",
            "Choose another --cache-dir, or lower --cache-budget to stream.",
        ) from error


@dataclass(frozen=True)
class CacheEntry:
    """Images by content hash, one slot each. The status of a slot is `ok`, the reason of a failure, or pending."""

    folder: Path
    sha256: list[str]
    status: list[str]
    store: str = "pixels.u8"

    @property
    def file(self) -> Path:
        return self.folder / self.store

    def pending(self) -> list[int]:
        """Return the slots that are not filled yet."""
        return [i for i, status in enumerate(self.status) if status == PENDING]

    def known(self) -> dict[str, int]:
        """Return the slot of every content hash that is not pending."""
        return {sha: i for i, (sha, status) in enumerate(zip(self.sha256, self.status, strict=True)) if status}


class Cache:
    """The entries of one image size. Folders are built, then renamed.

    Without a folder nothing is kept: `complete` builds in the scratch folder of the run.
    """

    def __init__(self, folder: Path | None, *, prefix: str, item_bytes: int, store: str) -> None:
        self._root = folder
        self._prefix = prefix
        self._item_bytes = item_bytes
        self._store = store
        self._lock: FileLock | None = None

    @classmethod
    def of_pixels(cls, folder: Path | None, *, size: int, max_pixels: int) -> Cache:
        """Return the cache of decoded images of one size."""
        prefix = f"{size}px-v{DECODER_VERSION}-{max_pixels:x}-"
        return cls(folder, prefix=prefix, item_bytes=pixel_bytes(1, size), store="pixels.u8")

    @property
    def _folder(self) -> Path:
        assert self._root is not None
        return self._root

    def complete(
        self, contents: list[str], fill: Callable[[CacheEntry], None], *, scratch: Path
    ) -> tuple[CacheEntry, bool]:
        """Return an entry with all contents, and whether it was in the cache.

        Else an entry is built: what the cache has is copied, and `fill` adds its pending slots. It is kept also if
        `fill` is stopped, so that the next run continues from there.
        """
        known = None if self._root is None else self.best(set(contents))
        if known is not None and set(contents) <= known.known().keys():
            return known, True
        folder = scratch if self._root is None else self._building_folder()
        folder.mkdir(parents=True, exist_ok=True)
        entry = CacheEntry(folder, contents, [PENDING] * len(contents), self._store)
        make_store(entry.file, len(contents), self._item_bytes)
        if known is not None:
            entry = copy_known(known, entry, self._item_bytes)
        try:
            fill(entry)
        finally:
            if self._root is not None:
                entry = self.keep(entry)
        return entry, False

    def best(self, contents: set[str]) -> CacheEntry | None:
        """Return the entry that has most of these content hashes, or None."""
        best: tuple[int, CacheEntry] | None = None
        for entry in self._entries():
            overlap = len(contents & entry.known().keys())
            if overlap and (best is None or overlap > best[0]):
                best = overlap, entry
        if best is None:
            return None
        os.utime(best[1].folder)  # the time of last use, for `noisesieve cache --clear --older-than`
        return best[1]

    def _building_folder(self) -> Path:
        """Create a locked folder to build an entry in. Unfinished folders of dead processes are removed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._exclusive():
            for stale in self._folder.glob(".building-*"):
                try:
                    with FileLock(stale / "lock", blocking=False):
                        shutil.rmtree(stale, ignore_errors=True)
                except (Timeout, OSError):
                    continue  # its process is alive
            folder = self._folder / f".building-{secrets.token_hex(6)}"
            folder.mkdir()
            self._lock = FileLock(folder / "lock", blocking=False)
            self._lock.acquire()
        return folder

    def _exclusive(self) -> FileLock:
        """Return the lock that is held while folders are added or removed."""
        return FileLock(self._folder / ".lock")

    def keep(self, building: CacheEntry) -> CacheEntry:
        """Make a built folder an entry. It replaces an older entry with the same contents."""
        pq.write_table(
            pa.table({"sha256": building.sha256, "status": building.status}), building.folder / "contents.parquet"
        )
        for name in (building.store, "contents.parquet"):
            sync_file(building.folder / name)
        content = hashlib.sha256("".join(building.sha256).encode()).hexdigest()
        target = self._folder / f"{self._prefix}{content[:16]}"
        old = self._folder / f".building-{secrets.token_hex(6)}"
        with self._exclusive():
            self.release()
            (building.folder / "lock").unlink(missing_ok=True)
            if target.exists():
                target.rename(old)
            building.folder.rename(target)
        shutil.rmtree(old, ignore_errors=True)
        sync_folder(self._folder)
        return CacheEntry(target, building.sha256, building.status, building.store)

    def release(self) -> None:
        """Release the lock of the building folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _entries(self) -> Iterator[CacheEntry]:
        for folder in sorted(self._folder.glob(self._prefix + "*")) if self._folder.is_dir() else ():
            try:
                table = pq.read_table(folder / "contents.parquet", columns=["sha256", "status"])
                length = (folder / self._store).stat().st_size
            except (OSError, pa.ArrowException):
                continue  # not an entry, or damaged: ignored
            if length == max(1, len(table)) * self._item_bytes:
                yield CacheEntry(folder, table["sha256"].to_pylist(), table["status"].to_pylist(), self._store)


def copy_known(source: CacheEntry, target: CacheEntry, item_bytes: int) -> CacheEntry:
    """Copy the slots that `source` has into a new entry; the other slots stay pending."""
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
