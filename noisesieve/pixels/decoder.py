"""Read and decode all images of a dataset: inspect files, decode into the cache, stream, make thumbnails."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from noisesieve.core.columns import HASH_BYTES, Hashes, Texts
from noisesieve.core.progress import Session
from noisesieve.core.records import FileFacts, Index, Ints
from noisesieve.core.row_store import RowFile
from noisesieve.pixels.decoded import Decoded, thumbnails_of_stored
from noisesieve.pixels.known import KnownContents
from noisesieve.pixels.pixel_cache import CachedPixels, cache_folder, pixel_bytes, pixel_file, pixel_folder
from noisesieve.pixels.pixel_settings import PixelSettings
from noisesieve.pixels.stream import StreamedPixels
from noisesieve.pixels.task_queue import ImageTask, Pass, TaskResult
from noisesieve.pixels.worker_pool import WorkerPool
from noisesieve.pixels.writer import PixelWriter

SAMPLE = 64  # images from whose headers the training size is guessed
TOO_LARGE = "The pixels do not fit the cache (--cache-budget): images are decoded again in every epoch."


@dataclass
class _EarlyPixels:
    """Pixels that were stored while the files were read, at a size that was guessed before all headers were known."""

    size: int
    writer: PixelWriter | None  # None: they do not fit the cache, and were decoded only to validate them
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
        count = len(index) if rows is None else len(rows)
        results = _Results(count)
        self._run(_tasks(index, rows), count, results.take, Pass(), "reading", session=session)
        return results.file_facts()

    def read(self, index: Index, size_of: Callable[[Ints], int]) -> FileFacts:
        """Do the same, and decode every image at once, at the size that the first headers suggest: into the cache or,
        if they do not fit it, only to find out which can be decoded.

        `size_of` returns the training size from the longer sides of images. If `decode` is then asked for another size,
        the files are read again.
        """
        root, count = cache_folder(self.settings, self._session), len(index)
        kept, size = self._guess_size(index, size_of)
        if root is None and self._fits(Path(tempfile.gettempdir()), size, images=count, missing=count):
            return self.inspect(index)  # the pixels go to the scratch folder of the run, which is not known yet
        writer = None
        if root is not None:
            file = self._file(root, size, root)
            missing = max(0, count - len(file.prefixes()))
            if self._fits(root, size, images=count, missing=missing):
                writer = PixelWriter(file, self._session)
        early = self._early = _EarlyPixels(size, writer)
        results = _Results(count)

        def take(result: TaskResult) -> None:
            if result.status != "ok" and result.sha256 is not None:
                early.failed[result.sha256] = result.status
            if writer is not None:
                writer.add(result)
            results.take(result)

        with writer or contextlib.nullcontext():
            work = Pass(size, send=None if writer is None else "pixels")
            tasks = (task._replace(blob=kept.pop(task.key, b"")) for task in _tasks(index))
            self._run(tasks, count, take, work, "reading", known=None if writer is None else writer.file)
        if len(lost := results.lost):  # the decoder may have crashed
            reasons = {row: results.status(row) for row in lost.tolist()}
            self._run(_tasks(index, lost, keyed=True), len(lost), results.take, Pass(), "reading")
            early.failed.update((sha, why) for row, why in reasons.items() if (sha := results.sha256(row)) is not None)
        return results.file_facts()

    def _guess_size(self, index: Index, size_of: Callable[[Ints], int]) -> tuple[dict[int, bytes], int]:
        """Return the files of a few images, which need no second read, and the training size by their headers."""
        rows = np.unique(np.linspace(0, len(index) - 1, min(len(index), SAMPLE)).round().astype(np.int64))
        results, kept = _Results(len(rows)), {}

        def take(result: TaskResult) -> None:
            kept[int(rows[result.key])] = result.data
            results.take(result)

        quiet = Session(stop=self._session.stop)
        self._run(_tasks(index, rows), len(rows), take, Pass(send="file"), "", session=quiet)
        facts = results.file_facts()
        return kept, size_of(facts.longest_sides)

    def decode(self, index: Index, file_facts: FileFacts, *, size: int, scratch: Path) -> Decoded:
        """Return the pixels of every readable row at `size`: from the cache, decoded into it, or streamed."""
        readable = np.flatnonzero(file_facts.readable)
        codes = file_facts.hashes.take(readable).codes()
        _, places = np.unique(codes, return_index=True)
        first: Ints = readable[np.sort(places)].astype(np.int64)  # the first row of every content
        contents = file_facts.hashes.take(first)
        session, root = self._session, cache_folder(self.settings, self._session)
        early = self._early if self._early is not None and self._early.size == size else None
        if early is not None and early.writer is None:
            session.note(TOO_LARGE)
            return self._streamed(index, file_facts.with_status(early.failed), size=size)
        writer = PixelWriter(self._file(root, size, scratch), session)
        failed: dict[str, str] = {}
        if early is not None and early.writer is not None:
            writer, failed = early.writer, dict(early.failed)
        file = writer.file
        if damaged := file.drop_damaged(contents):
            session.warn(f"{file.file.parent}: {damaged:,} images are damaged: they are decoded again.")
        missing = file.missing(contents)
        if failed:
            missing &= ~contents.is_in(Hashes(failed))
        count = int(missing.sum())
        if not writer.full and not self._fits(root or scratch, size, images=len(first), missing=count):
            session.note(TOO_LARGE)
            return self._streamed(index, self._validated(index, file_facts, size), size=size)
        if count and early is None and count < len(first):
            session.note(f"{len(first) - count:,} of {len(first):,} images were in the cache.")
        if count and not writer.full:
            wanted = first[missing]

            def take(result: TaskResult) -> None:
                sha = str(file_facts.sha256[int(wanted[result.key])])
                if result.status != "ok":
                    failed[sha] = result.status
                elif result.sha256 != sha:
                    failed[sha] = "changed while it was read"
                else:
                    writer.add(result)

            with writer:
                self._run(_tasks(index, wanted), count, take, Pass(size, send="pixels"), "decoding")
        if writer.full:
            return self._streamed(index, self._validated(index, file_facts, size), size=size)
        if file.file.parent.exists():
            os.utime(file.file.parent)  # the time of last use, for `noisesieve cache --clear --older-than`
        file_facts = file_facts.with_status(failed)
        rows = np.flatnonzero(file_facts.readable).astype(np.int64)
        slots = file.slots(file_facts.hashes.take(rows))
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

        work = Pass(longest, send="thumbnail", training_size=training_size)
        self._run(tasks, len(tasks), take, work, "thumbnails")
        return images

    def validate(self, index: Index, rows: Ints) -> Hashes:
        """Decode these rows and keep nothing. Returns the hash of each content; None: it cannot be decoded."""
        results = _Results(len(rows))
        self._run(_tasks(index, rows), len(rows), results.take, Pass(16), "validating")
        facts = results.file_facts()
        decoded = np.array([results.status(row) == "ok" for row in range(len(rows))], dtype=np.bool_)
        return Hashes.of_bytes(facts.hashes.raw(), ~decoded)

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

    def _validated(self, index: Index, file_facts: FileFacts, size: int) -> FileFacts:
        """Decode everything once to find out what is readable, without storing it."""
        rows = np.flatnonzero(file_facts.readable).astype(np.int64)
        failed: dict[int, str] = {}

        def take(result: TaskResult) -> None:
            if result.status != "ok":
                failed[int(rows[result.key])] = result.status

        self._run(_tasks(index, rows), len(rows), take, Pass(size), "validating")
        if not failed:
            return file_facts
        status = list(file_facts.status)
        for row, why in failed.items():
            status[row] = why
        return replace(file_facts, status=status)

    def _streamed(self, index: Index, file_facts: FileFacts, *, size: int) -> Decoded:
        """Return pixels that are decoded again for every batch. The file facts say what can be decoded."""
        rows = np.flatnonzero(file_facts.readable).astype(np.int64)
        if len(rows) and index.locate(int(rows[0])).column is not None:
            self._session.warn(
                "Streaming embedded images in random order is slow: raise --cache-budget, or extract them."
            )
        pixels = StreamedPixels(
            locate=lambda row: index.locate(int(rows[row])),
            hashes=file_facts.hashes.take(rows),
            size=size,
            workers=self.settings.workers or os.cpu_count() or 1,
            max_pixels=self.settings.max_pixels,
            seconds=self.settings.decode_seconds,
            pool=self._pool,
        )
        return Decoded(file_facts, rows, pixels, reused=False)

    def _run(
        self,
        tasks: Iterable[ImageTask],
        count: int,
        take: Callable[[TaskResult], None],
        work: Pass,
        stage: str,
        *,
        known: RowFile | None = None,
        session: Session | None = None,
    ) -> None:
        """Run `count` tasks in the pool, with a progress bar; `take` receives each result.

        The header is enough for contents that a file has already: `known`.
        """
        session = session or self._session
        session.stage(stage, count)
        with tempfile.TemporaryDirectory(prefix="noisesieve-") as folder:
            contents = KnownContents.load(None) if known is None else KnownContents(known.prefixes())
            if len(contents.numbers):
                contents.save(Path(folder) / "known.npy")
                work = replace(work, known=os.path.join(folder, "known.npy"))
            for result in self._pool.run(tasks, work, count=count):
                take(result)
                session.advance()
                session.pause()
        session.finish()


class _Results:
    """The results of a pass by row, without their data: arrays, since there may be millions."""

    def __init__(self, rows: int) -> None:
        self._hashes = np.zeros((rows, HASH_BYTES), dtype=np.uint8)
        self._known = np.zeros(rows, dtype=np.bool_)
        self._size = np.zeros((2, rows), dtype=np.int64)
        self._transient = np.zeros(rows, dtype=np.bool_)
        self._status = np.zeros(rows, dtype=np.int32)  # position in _words
        self._words: dict[str, int] = {"ok": 0}

    def take(self, result: TaskResult) -> None:
        row = result.key
        self._known[row] = result.sha256 is not None
        if result.sha256 is not None:
            self._hashes[row] = np.frombuffer(bytes.fromhex(result.sha256), dtype=np.uint8)
        self._size[:, row] = result.width, result.height
        self._transient[row] = result.transient
        self._status[row] = self._words.setdefault(result.status, len(self._words))

    def sha256(self, row: int) -> str | None:
        return self._hashes[row].tobytes().hex() if self._known[row] else None

    def status(self, row: int) -> str:
        return list(self._words)[int(self._status[row])]

    @property
    def lost(self) -> Ints:
        """Rows whose failure may not happen again."""
        return np.flatnonzero(self._transient).astype(np.int64)

    def file_facts(self) -> FileFacts:
        # An image whose header is fine counts as readable here: `decode` finds out whether it can be decoded.
        codes = np.where(self._size[0] > 0, 0, self._status)
        status = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(list(self._words)))
        width, height = self._size
        return FileFacts(Hashes.of_bytes(self._hashes, ~self._known), Texts(status), width, height)


def _tasks(index: Index, rows: Ints | None = None, *, keyed: bool = False) -> Iterator[ImageTask]:
    """Yield the tasks of some rows, or of all. Their key is the row if `keyed`, else its position among these."""
    for j in range(len(index) if rows is None else len(rows)):
        row = j if rows is None else int(rows[j])
        yield ImageTask(row if keyed else j, index.locate(row))
