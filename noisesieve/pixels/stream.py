"""Pictures decoded anew for every batch: for datasets whose pixels are too many to keep."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noisesieve.errors import InputError
from noisesieve.pixels.cache import make_store, pixel_bytes
from noisesieve.pixels.crew import Crew, Task
from noisesieve.records import Bytes, Ints, Place

AHEAD = 4  # batches decoded before they are asked for


@dataclass(frozen=True)
class StreamedPixels:
    """Readable rows by their place and content hash; a file that changes or goes away stops the run."""

    places: list[Place]
    sha256: list[str]
    size: int
    workers: int
    max_pixels: int
    seconds: float

    def __len__(self) -> int:
        return len(self.places)

    def batches(self, order: Sequence[Ints]) -> Iterator[Bytes]:
        """For each array of rows its pictures (B, S, S, 3), decoded ahead in worker processes."""
        if not order:
            return
        longest = max(len(rows) for rows in order)
        slots = AHEAD * longest
        with tempfile.TemporaryDirectory(prefix="noisesieve-") as scratch:
            ring = Path(scratch) / "ring.u8"
            make_store(ring, slots, pixel_bytes(1, self.size))
            store = np.memmap(ring, dtype=np.uint8, mode="r", shape=(slots, self.size, self.size, 3))
            with Crew(
                self.workers, size=self.size, max_pixels=self.max_pixels, seconds=self.seconds, store=ring, slots=slots
            ) as crew:
                waiting: dict[int, int] = {}  # batch → answers still to come

                def send(batch: int) -> None:
                    begin = (batch % AHEAD) * longest
                    rows = order[batch].tolist()
                    waiting[batch] = len(rows)
                    # The answer's row carries batch and place in the batch.
                    crew.submit([Task(batch * longest + j, begin + j, self.places[row]) for j, row in enumerate(rows)])

                def send_one(row: int) -> None:
                    batch, j = divmod(row, longest)
                    crew.submit([Task(row, (batch % AHEAD) * longest + j, self.places[int(order[batch][j])])])

                again: set[int] = set()
                for batch in range(min(AHEAD, len(order))):
                    send(batch)
                for batch, rows in enumerate(order):
                    while waiting[batch]:
                        answer = crew.answer()
                        if answer.passing and answer.row not in again:  # the worker's fault, perhaps: once more
                            again.add(answer.row)
                            send_one(answer.row)
                            continue
                        self._verify(
                            answer.sha256, answer.status, int(order[answer.row // longest][answer.row % longest])
                        )
                        waiting[answer.row // longest] -= 1
                    begin = (batch % AHEAD) * longest
                    pictures = np.array(store[begin : begin + len(rows)])
                    if batch + AHEAD < len(order):
                        send(batch + AHEAD)
                    yield pictures

    def _verify(self, sha256: str | None, status: str, row: int) -> None:
        if status != "ok" or sha256 != self.sha256[row]:
            reason = status if status != "ok" else "its content changed"
            raise InputError(
                f"{self.places[row].file}: {reason} since the run began.",
                "Put the file back and run the same command again: the run resumes.",
            )
