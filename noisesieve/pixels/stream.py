"""Pixels that are not stored: decoded again for every batch, or none at all where rows have vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from noisesieve.core.columns import Hashes
from noisesieve.core.errors import InputError
from noisesieve.core.records import Bytes, ImageLocation, Ints
from noisesieve.pixels.task_queue import ImageTask, Pass
from noisesieve.pixels.worker_pool import WorkerPool

AHEAD = 4  # batches decoded before they are asked for


@dataclass(frozen=True)
class StreamedPixels:
    """The readable rows by location and content hash. A file that changes or disappears stops the run."""

    locate: Callable[[int], ImageLocation]
    hashes: Hashes  # (N,)
    size: int
    workers: int
    max_pixels: int
    seconds: float
    pool: WorkerPool | None = field(default=None, compare=False, repr=False)  # of the command; None: its own

    def __len__(self) -> int:
        return len(self.hashes)

    def batches(self, order: Sequence[Ints]) -> Iterator[Bytes]:
        """Yield the images (B, S, S, 3) of each array of rows, decoded ahead in worker processes."""
        if not order:
            return
        longest = max(len(rows) for rows in order)  # the key of a task is batch * longest + position in the batch
        ready: dict[int, Bytes] = {}  # by batch, as far as decoded
        waiting: dict[int, int] = {}  # by batch: number of results still missing
        work = Pass(self.size, send="pixels")

        def send(batch: int) -> None:
            rows = order[batch].tolist()
            ready[batch], waiting[batch] = np.empty((len(rows), self.size, self.size, 3), np.uint8), len(rows)
            tasks = [ImageTask(batch * longest + j, self.locate(row)) for j, row in enumerate(rows)]
            self._pool.submit(tasks, work)

        try:
            for batch in range(min(AHEAD, len(order))):
                send(batch)
            for batch in range(len(order)):
                while waiting[batch]:
                    result = self._pool.result()
                    other, j = divmod(result.key, longest)
                    self._verify(result.sha256, result.status, int(order[other][j]))
                    ready[other][j] = np.frombuffer(result.data, np.uint8).reshape(self.size, self.size, 3)
                    waiting[other] -= 1
                if batch + AHEAD < len(order):
                    send(batch + AHEAD)
                yield ready.pop(batch)
        finally:
            if any(waiting.values()):  # stopped before the end: the next pass must not get these results
                self._pool.end_processes()

    @functools.cached_property
    def _pool(self) -> WorkerPool:
        return self.pool or WorkerPool(self.workers, max_pixels=self.max_pixels, seconds=self.seconds)

    def _verify(self, sha256: str | None, status: str, row: int) -> None:
        if status != "ok" or sha256 != self.hashes[row]:
            reason = status if status != "ok" else "its content changed"
            raise InputError(
                f"{self.locate(row).file}: {reason} since the run began.",
                "Put the file back and run the same command again: the run resumes.",
            )


@dataclass(frozen=True)
class NoPixels:
    """Stands for the pixels of rows that have vectors instead."""

    rows: int
    size: int = 0

    def __len__(self) -> int:
        return self.rows

    def batches(self, order: Sequence[Ints]) -> Iterator[Bytes]:
        raise AssertionError("rows with vectors have no pixels")
