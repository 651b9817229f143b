"""What `noisesieve cache` shows and removes: the entries of a cache folder, with their size and last use."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.pixels.cache import FEATURES


@dataclass(frozen=True)
class CacheEntryInfo:
    """An entry of the cache, as `noisesieve cache` lists it."""

    name: str
    kind: str  # pixels or features
    size: int  # side of the images in pixels
    images: int
    bytes: int
    last_used: str  # UTC, ISO


def list_entries(folder: Path) -> list[CacheEntryInfo]:
    """Return the entries of a cache folder, longest unused first. Other folders are ignored."""
    entries = []
    for path in sorted(folder.glob("*px-v*-*")) if folder.is_dir() else ():
        try:
            images = pq.read_metadata(path / "contents.parquet").num_rows
            size = int(path.name.partition("px-")[0])
            used = datetime.datetime.fromtimestamp(path.stat().st_mtime, tz=datetime.UTC)
        except (OSError, pa.ArrowException, ValueError):
            continue
        total = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        kind = "features" if (path / FEATURES).exists() else "pixels"
        entries.append(CacheEntryInfo(path.name, kind, size, images, total, used.isoformat(timespec="seconds")))
    return sorted(entries, key=lambda entry: entry.last_used)


def clear_entries(folder: Path, entries: Sequence[CacheEntryInfo], *, older_than: float | None) -> list[CacheEntryInfo]:
    """Remove entries that were unused for `older_than` seconds, or all. Running scans keep their open maps."""
    now, gone = datetime.datetime.now(tz=datetime.UTC), []
    for entry in entries:
        idle = (now - datetime.datetime.fromisoformat(entry.last_used)).total_seconds()
        if older_than is None or idle > older_than:
            shutil.rmtree(folder / entry.name, ignore_errors=True)
            if not (folder / entry.name).exists():
                gone.append(entry)
    return gone
