"""Read and decode all images of a dataset: inspect files, decode into the cache, stream, make thumbnails."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from noisesieve.core.progress import Session
from noisesieve.core.records import FileFacts, Index, Ints
from noisesieve.core.row_store import RowFile
from noisesieve.pixels.decoded import Decoded, thumbnails_of_stored
from noisesieve.pixels.known import KnownContents
from noisesieve.pixels.pixel_cache import CachedPixels, cache_folder, pixel_bytes, pixel_file, pixel_folder
from noisesieve.pixels.pixel_settings import PixelSettings
from noisesieve.pixels.stream import StreamedPixels
from noisesieve.pixels.worker_pool import ImageTask, Pass, TaskResult, WorkerPool
from noisesieve.pixels.writer import PixelWriter

SAMPLE = 64  # images from whose headers the training size is guessed


@dataclass
class _EarlyPixels:
    """Pixels that were stored while the files were read, at a size that was guessed before all headers were known."""

    size: int
    writer: PixelWriter
    failed: dict[str, str] = field(default_factory=dict)  # content → why it cannot be decoded


class Decoder:
    """Reads and decodes the images of datasets. One pool of worker processes serves all passes of a command."""

    def __init__(self, settings: PixelSettings, session: Session) -> None:
        self.settings = settings
        self._session = session
        self._pool = WorkerPool(
            settings.workers or os.cpu_count() or 1,
            max_pixels=settings.max_pixels,
            seconds=settings.decode_seconds,
        )
        self._early: _EarlyPixels | None = None

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.end_processes()

    def rest(self) -> None:
        """End the worker processes before a long training; the next pass starts new ones."""
        self._pool.end_processes()

    def inspect(self, index: Index, *, rows: Ints | None = None, session: Session | None = None) -> FileFacts:
        """Read every file once: its hash, the size from its header, or why it cannot be read. Nothing is decoded."""
        results = _Results(len(index) if rows is None else len(rows))
        self._run(_tasks(index, rows), results.take, Pass(), "reading", session=session)
        return results.file_facts()

    def read(self, index: Index, size_of: Callable[[Ints], int]) -> FileFacts:
        """Do the same, and decode every image at once into the cache, at the size that the first headers suggest.

        `size_of` returns the training size from the longer sides of images. If `decode` is then asked for another size,
        or if there is no cache, the files are read again.
        """
        root, count = cache_folder(self.settings, self._session), len(index)
        kept, size = self._guess_size(index, size_of)
        if root is None or not self._fits(root, size, images=count, missing=count):
            return self.inspect(index)
        early = self._early = _EarlyPixels(size, PixelWriter(self._file(root, size, root), self._session))
        tasks, results = [task._replace(blob=kept.get(task.key, b"")) for task in _tasks(index)], _Results(count)
        del kept  # the tasks have them

        def take(result: TaskResult) -> None:
            if result.status != "ok" and result.sha256 is not None:
                early.failed[result.sha256] = result.status
            early.writer.add(result)
            results.take(result)

        with early.writer:
            self._run(tasks, take, Pass(size, send="pixels"), "reading", known=early.writer.file.contents())
        if lost := [task for task in tasks if results[task.key].transient]:  # the decoder may have crashed
            reasons = {task.key: results[task.key].status for task in lost}
            self._run(lost, results.take, Pass(), "reading")
            early.failed.update((sha, why) for key, why in reasons.items() if (sha := results[key].sha256) is not None)
        return results.file_facts()

    def _guess_size(self, index: Index, size_of: Callable[[Ints], int]) -> tuple[dict[int, bytes], int]:
        """Return the files of a few images, which need no second read, and the training size by their headers."""
        rows = np.unique(np.linspace(0, len(index) - 1, min(len(index), SAMPLE)).round().astype(np.int64))
        results, kept = _Results(len(rows)), {}

        def take(result: TaskResult) -> None:
            kept[int(rows[result.key])] = result.data
            results.take(result)

        self._run(_tasks(index, rows), take, Pass(send="file"), "", session=Session(stop=self._session.stop))
        facts = results.file_facts()
        return kept, size_of(facts.longest_sides)

    def decode(self, index: Index, file_facts: FileFacts, *, size: int, scratch: Path) -> Decoded:
        """Return the pixels of every readable row at `size`: from the cache, decoded into it, or streamed."""
        first: dict[str, int] = {}
        for i in np.flatnonzero(file_facts.readable).tolist():
            first.setdefault(str(file_facts.sha256[i]), i)
        session, root = self._session, cache_folder(self.settings, self._session)
        early = self._early if self._early is not None and self._early.size == size else None
        writer = early.writer if early is not None else PixelWriter(self._file(root, size, scratch), session)
        file, failed = writer.file, {} if early is None else dict(early.failed)
        if damaged := file.drop_damaged(first):
            session.warn(f"{file.file.parent}: {damaged:,} images are damaged: they are decoded again.")
        missing = file.missing(first) - failed.keys()
        if not writer.full and not self._fits(root or scratch, size, images=len(first), missing=len(missing)):
            session.note("The pixels do not fit the cache (--cache-budget): images are decoded again in every epoch.")
            return self._streamed(index, file_facts, size=size)
        if writer.full:
            return self._streamed(index, file_facts, size=size)
        if missing and early is None and len(missing) < len(first):
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
                self._run(tasks, take, Pass(size, send="pixels"), "decoding")
        if writer.full:
            return self._streamed(index, file_facts, size=size)
        if file.file.parent.exists():
            os.utime(file.file.parent)  # the time of last use, for `noisesieve cache --clear --older-than`
        status = [failed.get(str(sha), state) for sha, state in zip(file_facts.sha256, file_facts.status, strict=True)]
        file_facts = replace(file_facts, status=status)
        rows = np.flatnonzero(file_facts.readable).astype(np.int64)
        slots = file.slots([str(file_facts.sha256[i]) for i in rows.tolist()])
        return Decoded(file_facts, rows, CachedPixels(file.file, size, slots), reused=not writer.stored)

    def thumbnails(
        self,
        index: Index,
        rows: Ints,
        *,
        sha256: Sequence[str | None] | None,
        longest: int,
        training_size: int = 0,
        decoded: Decoded | None = None,
    ) -> list[bytes | None]:
        """Return a small WebP of each of these rows, in their order; None if the image changed since `sha256`.

        Images that are not shown larger than `training_size` are made of their training pixels, which need not be read
        again where `decoded` has them.
        """
        images: list[bytes | None] = [None] * len(rows)
        if decoded is not None:
            images = thumbnails_of_stored(rows, decoded, longest)
        order = np.argsort(rows, kind="stable").tolist()  # embedded images are read in blocks of consecutive rows
        tasks = [ImageTask(j, index.locate(int(rows[j]))) for j in order if images[j] is None]

        def take(result: TaskResult) -> None:
            if result.status == "ok" and (sha256 is None or result.sha256 == sha256[result.key]):
                images[result.key] = result.data

        self._run(tasks, take, Pass(longest, send="thumbnail", training_size=training_size), "thumbnails")
        return images

    def validate(self, index: Index, rows: Ints) -> list[str | None]:
        """Decode these rows and keep nothing. Returns the hash of each content; None: it cannot be decoded."""
        hashes: list[str | None] = [None] * len(rows)

        def take(result: TaskResult) -> None:
            hashes[result.key] = result.sha256 if result.status == "ok" else None

        self._run(_tasks(index, rows), take, Pass(16), "validating")
        return hashes

    def _file(self, root: Path | None, size: int, scratch: Path) -> RowFile:
        """Return the file of the pixels of one size: in the cache, or in the scratch folder."""
        if root is None:
            return pixel_file(scratch / str(size), size)
        return pixel_file(pixel_folder(root, size=size, max_pixels=self.settings.max_pixels), size)

    def _fits(self, folder: Path, size: int, *, images: int, missing: int) -> bool:
        """Return True if all images fit the budget, and those that are missing nine tenths of the free disk space."""
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free * 0.9
        return pixel_bytes(images, size) <= self.settings.cache_budget and pixel_bytes(missing, size) <= free

    def _streamed(self, index: Index, file_facts: FileFacts, *, size: int) -> Decoded:
        """Decode everything once to find out what is readable, without storing it."""
        readable = np.flatnonzero(file_facts.readable)
        tasks = [ImageTask(i, index.locate(i)) for i in readable.tolist()]
        if tasks and tasks[0].location.column is not None:
            self._session.warn(
                "Streaming embedded images in random order is slow: raise --cache-budget, or extract them."
            )
        status = list(file_facts.status)

        def take(result: TaskResult) -> None:
            status[result.key] = result.status

        self._run(tasks, take, Pass(size), "validating")
        file_facts = replace(file_facts, status=status)
        rows = np.flatnonzero(file_facts.readable).astype(np.int64)
        pixels = StreamedPixels(
            locations=[index.locate(i) for i in rows.tolist()],
            sha256=[str(file_facts.sha256[i]) for i in rows.tolist()],
            size=size,
            workers=self.settings.workers or os.cpu_count() or 1,
            max_pixels=self.settings.max_pixels,
            seconds=self.settings.decode_seconds,
            pool=self._pool,
        )
        return Decoded(file_facts, rows, pixels, reused=False)

    def _run(
        self,
        tasks: list[ImageTask],
        take: Callable[[TaskResult], None],
        work: Pass,
        stage: str,
        *,
        known: Iterable[str] = (),
        session: Session | None = None,
    ) -> None:
        """Run the tasks in the pool, with a progress bar; `take` receives each result.

        The header is enough for contents that are known.
        """
        session = session or self._session
        session.stage(stage, len(tasks))
        with tempfile.TemporaryDirectory(prefix="noisesieve-") as folder:
            contents = KnownContents.of(known)
            if len(contents.numbers):
                contents.save(Path(folder) / "known.npy")
                work = replace(work, known=os.path.join(folder, "known.npy"))
            for result in self._pool.run(tasks, work):
                take(result)
                session.advance()
                session.pause()
        session.finish()


class _Results:
    """The results of a pass by row, without their data."""

    def __init__(self, rows: int) -> None:
        self._results = [TaskResult(0, None, "", 0, 0)] * rows

    def __getitem__(self, key: int) -> TaskResult:
        return self._results[key]

    def take(self, result: TaskResult) -> None:
        self._results[result.key] = result._replace(data=b"")

    def file_facts(self) -> FileFacts:
        return FileFacts(
            sha256=[result.sha256 for result in self._results],
            # An image whose header is fine counts as readable here: `decode` finds out whether it can be decoded.
            status=["ok" if result.width else result.status for result in self._results],
            width=np.array([result.width for result in self._results], dtype=np.int64),
            height=np.array([result.height for result in self._results], dtype=np.int64),
        )


def _tasks(index: Index, rows: Ints | None = None) -> list[ImageTask]:
    return [ImageTask(j, index.locate(i)) for j, i in enumerate(range(len(index)) if rows is None else rows.tolist())]
