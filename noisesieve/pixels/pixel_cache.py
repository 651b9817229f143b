"""The cache on disk: decoded pixels by image content, one file per image size."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from noisesieve.core.progress import Session
from noisesieve.core.records import Bytes, Ints
from noisesieve.core.row_store import FORGOTTEN_BYTES, RowFile, forget_pages, open_rows
from noisesieve.core.untrusted import is_own
from noisesieve.pixels.image import DECODER_VERSION
from noisesieve.pixels.pixel_settings import PixelSettings

OUR_FILE = re.compile(
    r"\.lock|[a-z0-9_]+\.(u8|f16|chunks|sorted)|\.[a-z0-9_]+\.sorted\.[0-9a-f]{8}\.tmp|contents\.parquet"
)  # in an entry; the last of older versions


def default_cache_dir() -> Path:
    """Return the cache folder that is used without `--cache-dir`."""
    from platformdirs import user_cache_path

    return user_cache_path("noisesieve") / "pixels"


def cache_folder(settings: PixelSettings, session: Session) -> Path | None:
    """Return the cache folder; None if caching is off or the folder is not writable."""
    if not settings.cache:
        return None
    folder = settings.cache_dir or default_cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            _remove_empty_entries(folder)
            return folder
        reason = "not writable"
    except OSError as error:
        reason = str(error.strerror)
    session.warn(f"{folder}: {reason}: this run is not cached (--cache-dir chooses another folder).")
    return None


def _remove_empty_entries(folder: Path) -> None:
    """Remove entries in which a failed or killed run stored nothing."""
    for entry in folder.glob("*px-v*-*"):
        with contextlib.suppress(OSError, Timeout):
            if is_own(entry) and _is_empty(entry):
                with FileLock(entry / ".lock", blocking=False):
                    if _is_empty(entry):
                        shutil.rmtree(entry)


def _is_empty(entry: Path) -> bool:
    """Return True for an entry whose files are all ours, by their names, and empty."""
    return all(OUR_FILE.fullmatch(file.name) and file.lstat().st_size == 0 for file in entry.iterdir())


def warn_uncached(session: Session, root: Path, error: OSError) -> None:
    """Say, once per run, that nothing more is stored: the run takes longer and its result is the same."""
    session.warn_once(f"{root}: {error.strerror or error}: this run goes on without the cache.")


def pixel_folder(root: Path, *, size: int, max_pixels: int) -> Path:
    """Return the folder of the pixels of one size. A file of another decoder, or with another limit, is another one."""
    return root / f"{size}px-v{DECODER_VERSION}-{max_pixels:x}-pixels"


def pixel_file(folder: Path, size: int) -> RowFile:
    """Return the stored pixels of one size."""
    return RowFile(folder / "pixels.u8", shape=(size, size, 3), dtype="u1")


def pixel_bytes(count: int, size: int) -> int:
    """Return the size of `count` decoded images."""
    return count * size * size * 3


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
        read = 0
        for rows in order:
            batch = self._store[self.slots[rows]]
            if (read := read + batch.nbytes) > FORGOTTEN_BYTES:
                forget_pages(self._store)
                read = 0
            yield batch

    @functools.cached_property
    def _store(self) -> Bytes:
        """Opened once: a running scan keeps its map even if the cache is cleared meanwhile."""
        rows = int(self.slots.max(initial=-1)) + 1  # not all of the file: another process may be appending to it
        return open_rows(self.file, rows, shape=(self.size, self.size, 3), dtype=np.dtype(np.uint8))
