"""Read and decode all images of a dataset: inspect files, decode into the cache, stream, make thumbnails."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from noisesieve.core.progress import Session
from noisesieve.core.records import FileFacts, Index, Ints, Pixels
from noisesieve.core.row_store import RowFile
from noisesieve.core.settings import PixelSettings
from noisesieve.pixels.known import KnownContents
from noisesieve.pixels.pixel_cache import CachedPixels, cache_folder, pixel_bytes, pixel_file, pixel_folder
from noisesieve.pixels.stream import StreamedPixels
from noisesieve.pixels.worker_pool import CHUNK, ImageTask, TaskResult, WorkerOptions, WorkerPool
from noisesieve.pixels.writer import PixelWriter


@dataclass(frozen=True)
class Decoded:
    """The pixels of the readable rows, and the final status of every row."""

    file_facts: FileFacts
    rows: Ints  # the readable rows of the index, ascending; row j of `pixels` is rows[j]
    pixels: Pixels
    reused: bool


class Stage(NamedTuple):
    """What the workers do with every image in one pass over the files."""

    name: str
    size: int = 0  # side of the pixels, or of thumbnails; 0: read headers only
    send: str | None = None  # pixels, thumbnail, or nothing


@dataclass
class Ahead:
    """Pixels that are decoded into the cache while the files are inspected, so that every file is read once.

    The size must be guessed before all headers are known. If the guess is wrong, or there is no cache, `decode` reads
    the files again.
    """

    size: int
    failed: dict[str, str] = field(default_factory=dict)  # content → why it cannot be decoded
    writer: PixelWriter | None = None  # where the pixels went; None: nothing was decoded


def inspect_files(
    index: Index,
    settings: PixelSettings,
    session: Session,
    *,
    rows: Ints | None = None,
    ahead: Ahead | None = None,
) -> FileFacts:
    """Read every file once: its hash, the size from its header, or why it cannot be read.

    Nothing is decoded, unless `ahead` asks for it.
    """
    chosen = range(len(index)) if rows is None else rows.tolist()
    tasks = [ImageTask(j, index.locate(i)) for j, i in enumerate(chosen)]
    results: list[TaskResult] = [TaskResult(0, None, "", 0, 0)] * len(tasks)

    def take(result: TaskResult) -> None:
        results[result.key] = result._replace(data=b"")

    if ahead is None or not _inspect_and_decode(tasks, take, settings, session, ahead):
        _run(tasks, take, settings, session, Stage("reading"))
    elif lost := [task for task in tasks if results[task.key].transient]:  # the decoder may have crashed
        reasons = {task.key: results[task.key].status for task in lost}
        _run(lost, take, settings, session, Stage("reading"))
        ahead.failed.update(
            (sha, reason) for key, reason in reasons.items() if (sha := results[key].sha256) is not None
        )
    return FileFacts(
        sha256=[result.sha256 for result in results],
        # An image whose header is fine counts as readable here: whether it can be decoded is known after `decode`.
        status=["ok" if result.width else result.status for result in results],
        width=np.array([result.width for result in results], dtype=np.int64),
        height=np.array([result.height for result in results], dtype=np.int64),
    )


def _inspect_and_decode(
    tasks: list[ImageTask], take: Callable[[TaskResult], None], settings: PixelSettings, session: Session, ahead: Ahead
) -> bool:
    """Inspect files and store the pixels of those that the cache lacks. False: nothing was done, they would not fit."""
    root, count = cache_folder(settings, session), len(tasks)
    if root is None or not _fits(settings, root, ahead.size, images=count, missing=count):
        return False
    writer = ahead.writer = PixelWriter(_file(settings, root, ahead.size, root), session)

    def keep(result: TaskResult) -> None:
        if result.status != "ok" and result.sha256 is not None:
            ahead.failed[result.sha256] = result.status
        writer.add(result)
        take(result)

    with writer:
        stage = Stage("reading", ahead.size, send="pixels")
        _run(tasks, keep, settings, session, stage, known=writer.file.contents())
    return True


def decode(
    index: Index,
    file_facts: FileFacts,
    settings: PixelSettings,
    session: Session,
    *,
    size: int,
    scratch: Path,
    ahead: Ahead | None = None,
) -> Decoded:
    """Return the pixels of every readable row at `size`: from the cache, decoded into it, or streamed."""
    first: dict[str, int] = {}
    for i in np.flatnonzero(file_facts.readable).tolist():
        first.setdefault(str(file_facts.sha256[i]), i)
    root = cache_folder(settings, session)
    done = ahead.writer if ahead is not None and ahead.size == size else None
    writer = done or PixelWriter(_file(settings, root, size, scratch), session)
    file, failed = writer.file, dict(ahead.failed) if ahead is not None and done is not None else {}
    if damaged := file.drop_damaged(first):
        session.warn(f"{file.file.parent}: {damaged:,} images are damaged: they are decoded again.")
    missing = file.missing(first) - failed.keys()
    if not writer.full and not _fits(settings, root or scratch, size, images=len(first), missing=len(missing)):
        session.note("The pixels do not fit the cache (--cache-budget): images are decoded again in every epoch.")
        return _streamed(index, file_facts, settings, session, size=size)
    if writer.full:
        return _streamed(index, file_facts, settings, session, size=size)
    if missing and done is None and len(missing) < len(first):
        session.note(f"{len(first) - len(missing):,} of {len(first):,} images were in the cache.")
    if missing:
        contents = [sha for sha in first if sha in missing]  # in the order of the files
        tasks = [ImageTask(j, index.locate(first[sha])) for j, sha in enumerate(contents)]

        def take(result: TaskResult) -> None:
            wanted = contents[result.key]
            if result.status != "ok":
                failed[wanted] = result.status
            elif result.sha256 != wanted:
                failed[wanted] = "changed while it was read"
            else:
                writer.add(result)

        with writer:
            _run(tasks, take, settings, session, Stage("decoding", size, send="pixels"))
    if writer.full:
        return _streamed(index, file_facts, settings, session, size=size)
    if file.file.parent.exists():
        os.utime(file.file.parent)  # the time of last use, for `noisesieve cache --clear --older-than`
    status = [failed.get(str(sha), state) for sha, state in zip(file_facts.sha256, file_facts.status, strict=True)]
    file_facts = replace(file_facts, status=status)
    rows = np.flatnonzero(file_facts.readable).astype(np.int64)
    slots = file.slots([str(file_facts.sha256[i]) for i in rows.tolist()])
    return Decoded(file_facts, rows, CachedPixels(file.file, size, slots), reused=not writer.stored)


def _file(settings: PixelSettings, root: Path | None, size: int, scratch: Path) -> RowFile:
    """Return the file of the pixels of one size: in the cache, or in the scratch folder."""
    return pixel_file(
        scratch / str(size) if root is None else pixel_folder(root, size=size, max_pixels=settings.max_pixels), size
    )


def thumbnails(
    index: Index,
    rows: Ints,
    settings: PixelSettings,
    session: Session,
    *,
    sha256: list[str] | None,
    longest: int,
) -> list[bytes | None]:
    """Return a small WebP of each of these rows, in their order; None if the image changed since `sha256`."""
    order = np.argsort(rows, kind="stable").tolist()  # embedded images are read in blocks of consecutive rows
    tasks = [ImageTask(j, index.locate(int(rows[j]))) for j in order]
    found: list[bytes | None] = [None] * len(tasks)

    def take(result: TaskResult) -> None:
        if result.status == "ok" and (sha256 is None or result.sha256 == sha256[result.key]):
            found[result.key] = result.data

    _run(tasks, take, settings, session, Stage("thumbnails", longest, send="thumbnail"))
    return found


def validate(index: Index, rows: Ints, settings: PixelSettings, session: Session) -> list[str | None]:
    """Decode these rows and keep nothing. Returns the hash of each content; None: it cannot be decoded."""
    tasks = [ImageTask(j, index.locate(row)) for j, row in enumerate(rows.tolist())]
    found: list[str | None] = [None] * len(tasks)

    def take(result: TaskResult) -> None:
        found[result.key] = result.sha256 if result.status == "ok" else None

    _run(tasks, take, settings, session, Stage("validating", 16))
    return found


def _fits(settings: PixelSettings, folder: Path, size: int, *, images: int, missing: int) -> bool:
    """Return True if all images fit the budget, and those that are missing nine tenths of the free disk space."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free * 0.9
    return pixel_bytes(images, size) <= settings.cache_budget and pixel_bytes(missing, size) <= free


def _streamed(
    index: Index,
    file_facts: FileFacts,
    settings: PixelSettings,
    session: Session,
    *,
    size: int,
) -> Decoded:
    """Decode everything once to find out what is readable, without storing it."""
    readable = np.flatnonzero(file_facts.readable)
    tasks = [ImageTask(i, index.locate(i)) for i in readable.tolist()]
    if tasks and tasks[0].location.column is not None:
        session.warn("Streaming embedded images in random order is slow: raise --cache-budget, or extract them.")
    status = list(file_facts.status)

    def take(result: TaskResult) -> None:
        status[result.key] = result.status

    _run(tasks, take, settings, session, Stage("validating", size))
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
    stage: Stage,
    *,
    known: Iterable[str] = (),
) -> None:
    """Run the tasks in a worker pool, with a progress bar; `take` receives each result.

    The header is enough for contents that are known.
    """
    session.stage(stage.name, len(tasks))
    with tempfile.TemporaryDirectory(prefix="noisesieve-") as folder:
        options = WorkerOptions(stage.size, settings.max_pixels, settings.decode_seconds, stage.send)
        contents = KnownContents.of(known)
        if len(contents.numbers):
            contents.save(Path(folder) / "known.npy")
            options = replace(options, known=Path(folder) / "known.npy")
        with WorkerPool(_workers(settings, len(tasks)), options) as pool:
            for result in pool.run(tasks):
                take(result)
                session.advance()
                session.pause()
    session.finish()
