"""Room 2, DECODE: Index → Pixels. Every image once, in worker processes, to uint8 at training size."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from platformdirs import user_cache_path

from noisesieve.pixels.cache import Cache, CachedPixels, Entry, make_store
from noisesieve.pixels.crew import Answer, Crew, Task
from noisesieve.pixels.stream import StreamedPixels
from noisesieve.records import Index, Ints, Looks, Pixels, Place
from noisesieve.settings import PixelSettings
from noisesieve.watch import Watcher

__all__ = ["Decoded", "decode", "default_cache_dir", "from_document", "look", "pixel_bytes", "to_document"]


@dataclass(frozen=True)
class Decoded:
    """The pixels of the readable rows, and every row's final status."""

    looks: Looks
    rows: Ints  # the index rows that are readable, ascending; Pixels' row j is rows[j]
    pixels: Pixels
    reused: bool


def default_cache_dir() -> Path:
    """Where decoded pixels are kept unless the user says otherwise."""
    return user_cache_path("noisesieve") / "pixels"


def pixel_bytes(count: int, size: int) -> int:
    """How much a memory map of `count` pictures takes."""
    return count * size * size * 3


def look(
    index: Index, settings: PixelSettings, watcher: Watcher, *, rows: Ints | None = None, pause: Callable[[], None]
) -> Looks:
    """Read every file once: its hash, the size its header gives, or why it cannot be read. Nothing is decoded."""
    chosen = range(len(index)) if rows is None else rows.tolist()
    tasks = [Task(j, 0, index.places(i)) for j, i in enumerate(chosen)]
    return _run(tasks, settings, watcher, "reading", size=0, store=None, slots=0, pause=pause)[0]


def decode(
    index: Index,
    looks: Looks,
    settings: PixelSettings,
    watcher: Watcher,
    *,
    size: int,
    scratch: Path,
    pause: Callable[[], None],
) -> Decoded:
    """Pixels of every readable row at `size`: from the cache, freshly decoded into it, or streamed."""
    contents = sorted({sha for sha, ok in zip(looks.sha256, looks.readable, strict=True) if ok and sha is not None})
    first = {sha: i for i, sha in reversed(list(enumerate(looks.sha256))) if sha is not None}
    cache_dir = settings.cache_dir or default_cache_dir()
    if pixel_bytes(len(contents), size) > _room(settings, cache_dir if settings.cache else scratch):
        return _streamed(index, looks, settings, watcher, size=size, pause=pause)
    cache = Cache(cache_dir, size=size, max_pixels=settings.max_pixels)
    if settings.cache and (entry := cache.find(set(contents))) is not None:
        return _from_entry(looks, entry, size, reused=True)
    if settings.cache:
        building = cache.build()
    else:
        building = scratch
        building.mkdir(parents=True, exist_ok=True)
    store = building / "pixels.u8"
    make_store(store, len(contents), size)
    tasks = [Task(slot, slot, index.places(first[sha])) for slot, sha in enumerate(contents)]
    try:
        found, died = _run(
            tasks, settings, watcher, "decoding", size=size, store=store, slots=len(contents), pause=pause
        )
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    changed = [sha for sha, seen in zip(contents, found.sha256, strict=True) if seen is not None and seen != sha]
    status = [
        "changed while it was read" if sha in set(changed) else s for sha, s in zip(contents, found.status, strict=True)
    ]
    entry = Entry(building, contents, status, found.width.tolist(), found.height.tolist())
    if settings.cache and not died and not changed:
        entry = cache.keep(building, entry)
    return _from_entry(looks, entry, size, reused=False)


def to_document(pixels: Pixels) -> dict[str, Any]:
    """Pixels as plain data, for the other ranks of a run."""
    if isinstance(pixels, CachedPixels):
        return {"file": str(pixels.file), "size": pixels.size, "slots": pixels.slots.tolist()}
    return asdict(pixels)  # type: ignore[call-overload, no-any-return]


def from_document(document: dict[str, Any]) -> Pixels:
    """The pixels that `to_document` described."""
    if "slots" in document:
        slots = np.array(document["slots"], dtype=np.int64)
        return CachedPixels(Path(document["file"]), document["size"], slots)
    return StreamedPixels(**{**document, "places": [Place(**place) for place in document["places"]]})


def _room(settings: PixelSettings, folder: Path) -> int:
    """Bytes that pixels may take here: the budget, but never the last tenth of the disk."""
    while not folder.exists():
        folder = folder.parent
    return min(settings.cache_budget, int(shutil.disk_usage(folder).free * 0.9))


def _from_entry(looks: Looks, entry: Entry, size: int, *, reused: bool) -> Decoded:
    slot = {sha: i for i, sha in enumerate(entry.sha256)}
    status = [
        entry.status[slot[sha]] if state == "ok" and sha is not None else state
        for sha, state in zip(looks.sha256, looks.status, strict=True)
    ]
    looks = replace(looks, status=status)
    rows = np.flatnonzero(looks.readable).astype(np.int64)
    slots = np.array([slot[sha] for i in rows.tolist() if (sha := looks.sha256[i]) is not None], dtype=np.int64)
    return Decoded(looks, rows, CachedPixels(entry.file, size, slots), reused)


def _streamed(
    index: Index, looks: Looks, settings: PixelSettings, watcher: Watcher, *, size: int, pause: Callable[[], None]
) -> Decoded:
    """Decode everything once to know what is readable, keep nothing."""
    watcher.note("The pixels are too many for the cache: images are decoded anew in every epoch (--cache-budget).")
    readable = np.flatnonzero(looks.readable)
    tasks = [Task(j, 0, index.places(i)) for j, i in enumerate(readable.tolist())]
    found, _ = _run(tasks, settings, watcher, "validating", size=size, store=None, slots=0, pause=pause)
    status = list(looks.status)
    for j, i in enumerate(readable.tolist()):
        status[i] = found.status[j]
    looks = replace(looks, status=status)
    rows = np.flatnonzero(looks.readable).astype(np.int64)
    pixels = StreamedPixels(
        places=[index.places(i) for i in rows.tolist()],
        sha256=[str(looks.sha256[i]) for i in rows.tolist()],
        size=size,
        workers=_workers(settings, len(rows)),
        max_pixels=settings.max_pixels,
        seconds=settings.decode_seconds,
    )
    return Decoded(looks, rows, pixels, reused=False)


def _workers(settings: PixelSettings, tasks: int) -> int:
    return max(1, min(settings.workers or os.cpu_count() or 1, (tasks + 31) // 32))


def _run(
    tasks: list[Task],
    settings: PixelSettings,
    watcher: Watcher,
    name: str,
    *,
    size: int,
    store: Path | None,
    slots: int,
    pause: Callable[[], None],
) -> tuple[Looks, bool]:
    """Let a crew do the tasks; answers in the tasks' order, and whether a worker died on the way."""
    answers: list[Answer | None] = [None] * len(tasks)
    watcher.stage(name, len(tasks))
    with Crew(
        _workers(settings, len(tasks)),
        size=size,
        max_pixels=settings.max_pixels,
        seconds=settings.decode_seconds,
        store=store,
        slots=slots,
    ) as crew:
        for answer in crew.work(tasks):
            answers[answer.row] = answer
            watcher.advance()
            pause()
    watcher.finish()
    done = [answer for answer in answers if answer is not None]
    looks = Looks(
        sha256=[answer.sha256 for answer in done],
        status=[answer.status for answer in done],
        width=np.array([answer.width for answer in done], dtype=np.int64),
        height=np.array([answer.height for answer in done], dtype=np.int64),
    )
    return looks, any(answer.died for answer in done)
