"""What `noisesieve cache` shows and removes: the entries of a cache folder, with their size and last use."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.core.untrusted import is_own, open_regular
from noisesieve.pixels.pixel_cache import OUR_FILE


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
            if not is_own(path):
                continue  # of another user, or a link
            kind, images = _kind_and_images(path)
            size = int(path.name.partition("px-")[0])
            used = datetime.datetime.fromtimestamp(path.stat().st_mtime, tz=datetime.UTC)
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, RecursionError):
            continue
        total = sum(file.lstat().st_size for file in path.iterdir() if file.is_file())
        entries.append(CacheEntryInfo(path.name, kind, size, images, total, used.isoformat(timespec="seconds")))
    return sorted(entries, key=lambda entry: entry.last_used)


def _kind_and_images(path: Path) -> tuple[str, int]:
    """Return the kind of an entry, and how many images it has."""
    if (contents := path / "contents.parquet").is_file():  # of an older version
        return "features" if (path / "features.f16").exists() else "pixels", pq.read_metadata(contents).num_rows
    counts = [_rows_of_chunks(file) for file in path.glob("*.chunks")]
    if not counts:
        raise ValueError("not an entry")
    return "pixels" if (path / "pixels.u8").exists() else "features", max(counts)


def _rows_of_chunks(file: Path) -> int:
    rows = 0
    with open_regular(file, follow=False) as lines:
        for line in lines:
            rows += len(json.loads(line)["contents"])
    return rows


def clear_entries(folder: Path, entries: Sequence[CacheEntryInfo], *, older_than: float | None) -> list[CacheEntryInfo]:
    """Remove entries that were unused for `older_than` seconds, or all. Running scans keep their open maps."""
    now, gone = datetime.datetime.now(tz=datetime.UTC), []
    for entry in entries:
        idle = (now - datetime.datetime.fromisoformat(entry.last_used)).total_seconds()
        if older_than is None or idle > older_than:
            _remove_entry(folder / entry.name)
            if not (folder / entry.name).exists():
                gone.append(entry)
    return gone


def _remove_entry(entry: Path) -> None:
    """Remove our own files of an entry, and its folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        for file in entry.iterdir():
            if OUR_FILE.fullmatch(file.name):
                file.unlink()
        entry.rmdir()
