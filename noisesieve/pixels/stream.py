"""Images that are decoded again for every batch, for datasets whose pixels do not fit the cache."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noisesieve.core.errors import InputError
from noisesieve.core.records import Bytes, ImageLocation, Ints
from noisesieve.pixels.cache import make_store, pixel_bytes
from noisesieve.pixels.worker_pool import ImageTask, WorkerOptions, WorkerPool

AHEAD = 4  # batches decoded before they are asked for


@dataclass(frozen=True)
class StreamedPixels:
    """The readable rows by location and content hash. A file that changes or disappears stops the run."""

    locations: list[ImageLocation]
    sha256: list[str]
    size: int
    workers: int
    max_pixels: int
    seconds: float

    def __len__(self) -> int:
        return len(self.locations)

    def batches(self, order: Sequence[Ints]) -> Iterator[Bytes]:
        """Yield the images (B, S, S, 3) of each array of rows, decoded ahead in worker processes."""
        if not order:
            return
        longest = max(len(rows) for rows in order)
        slots = AHEAD * longest
        with tempfile.TemporaryDirectory(prefix="noisesieve-") as scratch:
            ring = Path(scratch) / "ring.u8"
            make_store(ring, slots, pixel_bytes(1, self.size))
            store = np.memmap(ring, dtype=np.uint8, mode="r", shape=(slots, self.size, self.size, 3))
            options = WorkerOptions(self.size, self.max_pixels, self.seconds, store=ring, slots=slots)
            with WorkerPool(self.workers, options) as pool:
                waiting: dict[int, int] = {}  # batch → number of results still missing

                def send(batch: int) -> None:
                    begin = (batch % AHEAD) * longest
                    rows = order[batch].tolist()
                    waiting[batch] = len(rows)
                    # The key of the task encodes the batch and the position in the batch.
                    first = batch * longest
                    pool.submit([ImageTask(first + j, begin + j, self.locations[row]) for j, row in enumerate(rows)])

                def send_one(row: int) -> None:
                    batch, j = divmod(row, longest)
                    pool.submit([ImageTask(row, (batch % AHEAD) * longest + j, self.locations[int(order[batch][j])])])

                again: set[int] = set()
                for batch in range(min(AHEAD, len(order))):
                    send(batch)
                for batch, rows in enumerate(order):
                    while waiting[batch]:
                        result = pool.result()
                        if result.transient and result.key not in again:  # perhaps the worker's fault: try once more
                            again.add(result.key)
                            send_one(result.key)
                            continue
                        self._verify(
                            result.sha256, result.status, int(order[result.key // longest][result.key % longest])
                        )
                        waiting[result.key // longest] -= 1
                    begin = (batch % AHEAD) * longest
                    images = np.array(store[begin : begin + len(rows)])
                    if batch + AHEAD < len(order):
                        send(batch + AHEAD)
                    yield images

    def _verify(self, sha256: str | None, status: str, row: int) -> None:
        if status != "ok" or sha256 != self.sha256[row]:
            reason = status if status != "ok" else "its content changed"
            raise InputError(
                f"{self.locations[row].file}: {reason} since the run began.",
                "Put the file back and run the same command again: the run resumes.",
            )
