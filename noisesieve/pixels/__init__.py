"""Room 2, DECODE: Index → Pixels. Every image once, in worker processes, to uint8 at training size."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from platformdirs import user_cache_path

from noisesieve.pixels.cache import PENDING, Cache, CachedPixels, Entry, copy_known, make_store, pixel_bytes
from noisesieve.pixels.crew import CHUNK, Answer, Crew, Task
from noisesieve.pixels.fetch import fetch
from noisesieve.pixels.stream import StreamedPixels
from noisesieve.records import Index, Ints, Looks, Pixels, Place
from noisesieve.settings import PixelSettings
from noisesieve.watch import Watcher

__all__ = [
    "Decoded",
    "cache_folder",
    "decode",
    "default_cache_dir",
    "fetch",
    "from_document",
    "look",
    "pixel_bytes",
    "thumbnails",
    "to_document",
]


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


def look(
    index: Index, settings: PixelSettings, watcher: Watcher, *, rows: Ints | None = None, pause: Callable[[], None]
) -> Looks:
    """Read every file once: its hash, the size its header gives, or why it cannot be read. Nothing is decoded."""
    chosen = range(len(index)) if rows is None else rows.tolist()
    tasks = [Task(j, 0, index.places(i)) for j, i in enumerate(chosen)]
    answers: list[Answer] = [Answer(0, None, PENDING, 0, 0)] * len(tasks)

    def take(answer: Answer) -> None:
        answers[answer.row] = answer

    _run(tasks, take, settings, watcher, "reading", pause=pause)
    return Looks(
        sha256=[answer.sha256 for answer in answers],
        status=[answer.status for answer in answers],
        width=np.array([answer.width for answer in answers], dtype=np.int64),
        height=np.array([answer.height for answer in answers], dtype=np.int64),
    )


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
    folder = cache_folder(settings, watcher)
    if pixel_bytes(len(contents), size) > _room(settings, folder or scratch):
        return _streamed(index, looks, settings, watcher, size=size, pause=pause)
    cache = None if folder is None else Cache.of_pixels(folder, size=size, max_pixels=settings.max_pixels)
    found = None if cache is None else cache.best(set(contents))
    if found is not None and set(contents) <= found.known().keys():
        return _from_entry(looks, found, size, reused=True)
    building = scratch if cache is None else cache.build()
    building.mkdir(parents=True, exist_ok=True)
    entry = Entry(building, contents, [PENDING] * len(contents))
    make_store(entry.file, len(contents), pixel_bytes(1, size))
    if found is not None:
        entry = copy_known(found, entry, pixel_bytes(1, size))
        watcher.note(f"{len(contents) - entry.status.count(PENDING):,} of {len(contents):,} images were in the cache.")
    first = {sha: i for i, sha in reversed(list(enumerate(looks.sha256))) if sha is not None}
    passing: dict[int, str] = {}  # slot → why, for failures that may be gone next time: never kept
    tasks = [Task(i, i, index.places(first[sha])) for i, sha in enumerate(contents) if entry.status[i] == PENDING]
    tasks.sort(key=lambda task: first[contents[task.row]])  # in the order of the files, not of the hashes

    def take(answer: Answer) -> None:
        if answer.sha256 == contents[answer.row] and not answer.passing:
            entry.status[answer.row] = answer.status
        else:
            changed = answer.sha256 is not None and not answer.passing
            passing[answer.row] = "changed while it was read" if changed else answer.status

    try:
        _run(tasks, take, settings, watcher, "decoding", size=size, entry=entry, pause=pause)
    finally:
        if cache is not None:  # on a stop too: the next run goes on from what is done
            entry = cache.keep(entry)
    whole = [passing.get(i, status) for i, status in enumerate(entry.status)]
    return _from_entry(looks, replace(entry, status=whole), size, reused=False)


def thumbnails(
    index: Index,
    rows: Ints,
    settings: PixelSettings,
    watcher: Watcher,
    *,
    sha256: list[str],
    longest: int,
    pause: Callable[[], None],
) -> list[bytes | None]:
    """A small WebP of each of these rows, in their order; None where the picture is no longer the one it was."""
    order = np.argsort(rows, kind="stable").tolist()  # embedded pictures lie in blocks, and rows in order share them
    tasks = [Task(j, j, index.places(int(rows[j]))) for j in order]
    with tempfile.TemporaryDirectory() as scratch:
        folder, made = Path(scratch), set()

        def take(answer: Answer) -> None:
            if answer.status == "ok" and answer.sha256 == sha256[answer.row]:
                made.add(answer.row)

        _run(tasks, take, settings, watcher, "pictures", size=longest, thumbnails=folder, pause=pause)
        return [(folder / str(j)).read_bytes() if j in made else None for j in range(len(tasks))]


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


def cache_folder(settings: PixelSettings, watcher: Watcher) -> Path | None:
    """Where things are kept for later runs; None: nowhere, by wish or because it cannot be written to."""
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
    watcher.warn(f"{folder}: {reason}: nothing of this run is kept (--cache-dir chooses another folder).")
    return None


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
    tasks = [Task(i, 0, index.places(i)) for i in readable.tolist()]
    if tasks and tasks[0].place.column is not None:
        watcher.warn("Streaming embedded images in random order is slow: raise --cache-budget, or extract them.")
    status = list(looks.status)

    def take(answer: Answer) -> None:
        status[answer.row] = answer.status

    _run(tasks, take, settings, watcher, "validating", size=size, pause=pause)
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
    return max(1, min(settings.workers or os.cpu_count() or 1, -(-tasks // CHUNK)))


def _run(
    tasks: list[Task],
    take: Callable[[Answer], None],
    settings: PixelSettings,
    watcher: Watcher,
    name: str,
    *,
    size: int = 0,
    entry: Entry | None = None,
    thumbnails: Path | None = None,
    pause: Callable[[], None],
) -> None:
    """Let a crew do the tasks, with progress."""
    watcher.stage(name, len(tasks))
    crew = Crew(
        _workers(settings, len(tasks)),
        size=size,
        max_pixels=settings.max_pixels,
        seconds=settings.decode_seconds,
        store=thumbnails if entry is None else entry.file,
        thumbnails=thumbnails is not None,
        slots=0 if entry is None else len(entry.sha256),
        pause=pause,
    )
    with crew:
        for answer in crew.work(tasks):
            take(answer)
            watcher.advance()
            pause()
    watcher.finish()
