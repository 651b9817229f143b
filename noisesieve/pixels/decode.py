"""Read and decode all images of a dataset: inspect files, decode into the cache, stream, make thumbnails."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from noisesieve.core.progress import Session
from noisesieve.core.records import FileFacts, Index, Ints, Pixels
from noisesieve.core.settings import PixelSettings
from noisesieve.pixels.cache import PENDING, Cache, CachedPixels, CacheEntry, cache_folder, pixel_bytes
from noisesieve.pixels.stream import StreamedPixels
from noisesieve.pixels.worker_pool import CHUNK, ImageTask, TaskResult, WorkerOptions, WorkerPool


@dataclass(frozen=True)
class Decoded:
    """The pixels of the readable rows, and the final status of every row."""

    file_facts: FileFacts
    rows: Ints  # the readable rows of the index, ascending; row j of `pixels` is rows[j]
    pixels: Pixels
    reused: bool


def inspect_files(index: Index, settings: PixelSettings, session: Session, *, rows: Ints | None = None) -> FileFacts:
    """Read every file once: its hash, the size from its header, or why it cannot be read. Nothing is decoded."""
    chosen = range(len(index)) if rows is None else rows.tolist()
    tasks = [ImageTask(j, 0, index.locate(i)) for j, i in enumerate(chosen)]
    results: list[TaskResult] = [TaskResult(0, None, PENDING, 0, 0)] * len(tasks)

    def take(result: TaskResult) -> None:
        results[result.key] = result

    _run(tasks, take, settings, session, "reading")
    return FileFacts(
        sha256=[result.sha256 for result in results],
        status=[result.status for result in results],
        width=np.array([result.width for result in results], dtype=np.int64),
        height=np.array([result.height for result in results], dtype=np.int64),
    )


def decode(
    index: Index,
    file_facts: FileFacts,
    settings: PixelSettings,
    session: Session,
    *,
    size: int,
    scratch: Path,
) -> Decoded:
    """Return the pixels of every readable row at `size`: from the cache, decoded into it, or streamed."""
    readable = zip(file_facts.sha256, file_facts.readable, strict=True)
    contents = sorted({sha for sha, ok in readable if ok and sha is not None})
    folder = cache_folder(settings, session)
    if pixel_bytes(len(contents), size) > _room(settings, folder or scratch):
        return _streamed(index, file_facts, settings, session, size=size)
    cache = Cache.of_pixels(folder, size=size, max_pixels=settings.max_pixels)
    first = {sha: i for i, sha in reversed(list(enumerate(file_facts.sha256))) if sha is not None}
    transient: dict[int, str] = {}  # slot → reason of a failure that may not happen again: never cached

    def fill(entry: CacheEntry) -> None:
        pending = entry.pending()
        if len(pending) < len(contents):
            session.note(f"{len(contents) - len(pending):,} of {len(contents):,} images were in the cache.")
        tasks = [ImageTask(i, i, index.locate(first[contents[i]])) for i in pending]
        tasks.sort(key=lambda task: first[contents[task.key]])  # in the order of the files, not of the hashes

        def take(result: TaskResult) -> None:
            if result.sha256 == contents[result.key] and not result.transient:
                entry.status[result.key] = result.status
            else:
                changed = result.sha256 is not None and not result.transient
                transient[result.key] = "changed while it was read" if changed else result.status

        _run(tasks, take, settings, session, "decoding", size=size, store=entry)

    entry, reused = cache.complete(contents, fill, scratch=scratch)
    status = [transient.get(i, status) for i, status in enumerate(entry.status)]
    return _from_entry(file_facts, replace(entry, status=status), size, reused=reused)


def thumbnails(
    index: Index,
    rows: Ints,
    settings: PixelSettings,
    session: Session,
    *,
    sha256: list[str],
    longest: int,
) -> list[bytes | None]:
    """Return a small WebP of each of these rows, in their order; None if the image changed since `sha256`."""
    order = np.argsort(rows, kind="stable").tolist()  # embedded images are read in blocks of consecutive rows
    tasks = [ImageTask(j, j, index.locate(int(rows[j]))) for j in order]
    with tempfile.TemporaryDirectory() as scratch:
        folder, unchanged = Path(scratch), set()

        def take(result: TaskResult) -> None:
            if result.status == "ok" and result.sha256 == sha256[result.key]:
                unchanged.add(result.key)

        _run(tasks, take, settings, session, "thumbnails", size=longest, store=folder)
        return [(folder / str(j)).read_bytes() if j in unchanged else None for j in range(len(tasks))]


def _room(settings: PixelSettings, folder: Path) -> int:
    """Return how many bytes the pixels may take: the budget, but at most nine tenths of the free disk space."""
    while not folder.exists():
        folder = folder.parent
    return min(settings.cache_budget, int(shutil.disk_usage(folder).free * 0.9))


def _from_entry(file_facts: FileFacts, entry: CacheEntry, size: int, *, reused: bool) -> Decoded:
    slot = {sha: i for i, sha in enumerate(entry.sha256)}
    status = [
        entry.status[slot[sha]] if state == "ok" and sha is not None else state
        for sha, state in zip(file_facts.sha256, file_facts.status, strict=True)
    ]
    file_facts = replace(file_facts, status=status)
    rows = np.flatnonzero(file_facts.readable).astype(np.int64)
    slots = np.array([slot[sha] for i in rows.tolist() if (sha := file_facts.sha256[i]) is not None], dtype=np.int64)
    return Decoded(file_facts, rows, CachedPixels(entry.file, size, slots), reused)


def _streamed(
    index: Index,
    file_facts: FileFacts,
    settings: PixelSettings,
    session: Session,
    *,
    size: int,
) -> Decoded:
    """Decode everything once to find out what is readable, without storing it."""
    session.note("The pixels do not fit the cache (--cache-budget): images are decoded again in every epoch.")
    readable = np.flatnonzero(file_facts.readable)
    tasks = [ImageTask(i, 0, index.locate(i)) for i in readable.tolist()]
    if tasks and tasks[0].location.column is not None:
        session.warn("Streaming embedded images in random order is slow: raise --cache-budget, or extract them.")
    status = list(file_facts.status)

    def take(result: TaskResult) -> None:
        status[result.key] = result.status

    _run(tasks, take, settings, session, "validating", size=size)
    file_facts = replace(file_facts, status=status)
    rows = np.flatnonzero(file_facts.readable).astype(np.int64)
    pixels = StreamedPixels(
        locations=[index.locate(i) for i in rows.tolist()],
        sha256=[str(file_facts.sha256[i]) for i in rows.tolist()],
        size=size,
        workers=_workers(settings, len(rows)),
        max_pixels=settings.max_pixels,
        seconds=settings.decode_seconds,
    )
    return Decoded(file_facts, rows, pixels, reused=False)


def _workers(settings: PixelSettings, tasks: int) -> int:
    return max(1, min(settings.workers or os.cpu_count() or 1, -(-tasks // CHUNK)))


def _run(
    tasks: list[ImageTask],
    take: Callable[[TaskResult], None],
    settings: PixelSettings,
    session: Session,
    name: str,
    *,
    size: int = 0,
    store: CacheEntry | Path | None = None,
) -> None:
    """Run the tasks in a worker pool, with a progress bar; `take` receives each result.

    The pixels go to the slots of an entry; thumbnails to a folder; or nowhere.
    """
    session.stage(name, len(tasks))
    options = WorkerOptions(
        size=size,
        max_pixels=settings.max_pixels,
        seconds=settings.decode_seconds,
        store=store.file if isinstance(store, CacheEntry) else store,
        slots=len(store.sha256) if isinstance(store, CacheEntry) else 0,
        thumbnails=isinstance(store, Path),
    )
    with WorkerPool(_workers(settings, len(tasks)), options) as pool:
        for result in pool.run(tasks):
            take(result)
            session.advance()
            session.pause()
    session.finish()
