"""What the rooms hand each other. Row i is the same image in every record: nothing shifts, drops or reorders rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Place:
    """Where one row's image lies: a file, or a cell of a table (`column` and `position`; `offset` in a JSONL)."""

    file: str
    column: str | None = None
    position: int = 0


@dataclass(frozen=True)
class Index:
    """The dataset as the user keeps it: one entry a row, in a stable order."""

    name: str
    kind: str  # a key of SOURCES
    root: Path
    ids: list[str]
    paths: list[str | None]  # relative to the root, escaped; None where the image is embedded
    labels: list[str]
    places: Callable[[int], Place]
    lines: Ints | None = None  # line in the table, counted from 1
    splits: list[str] | None = None
    trusted: Bools | None = None
    carried: pa.Table | None = None  # the user's other columns; training never reads them
    label_column: str = "label"
    notes: list[str] = field(default_factory=list)  # what was skipped, for people

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Ints) -> Index:
        """The same index with only these rows, in this order."""
        picked = rows.tolist()
        places = self.places
        return Index(
            name=self.name,
            kind=self.kind,
            root=self.root,
            ids=[self.ids[i] for i in picked],
            paths=[self.paths[i] for i in picked],
            labels=[self.labels[i] for i in picked],
            places=lambda i: places(picked[i]),
            lines=None if self.lines is None else self.lines[rows],
            splits=None if self.splits is None else [self.splits[i] for i in picked],
            trusted=None if self.trusted is None else self.trusted[rows],
            carried=None if self.carried is None else self.carried.take(pa.array(rows)),
            label_column=self.label_column,
            notes=self.notes,
        )


@dataclass(frozen=True)
class Looks:
    """What reading each file told, before any pixel: content hash, size from the header, or why not."""

    sha256: list[str | None]
    status: list[str]  # "ok", or the reason this row cannot be read
    width: Ints
    height: Ints

    @property
    def readable(self) -> Bools:
        return np.array([status == "ok" for status in self.status], dtype=np.bool_)


class Pixels(Protocol):
    """uint8 pictures at training size, by readable row."""

    def __len__(self) -> int: ...

    @property
    def size(self) -> int: ...

    def batches(self, order: Sequence[Ints]) -> Iterator[Bytes]:
        """For each array of rows its pictures (B, S, S, 3), in that order."""
        ...


@dataclass(frozen=True)
class Scores:
    """What training leaves: class probabilities of every readable row and the course that led there."""

    probs: Floats  # (N, K), averaged over the views and epochs that count
    flagged_epochs: Floats | None  # (N,) share of the sieve epochs in which the row was dropped; None: no training
    prior: Floats  # (K,)
    beta: float
    history: list[dict[str, Any]]
    facts: dict[str, Any]  # what the run decided for itself: flips, length of the warm-up
    torn: Bools | None = None  # (N,) two opinions name different classes beside the given one; None: only one was asked
    saved: Floats | None = None  # (N, 2) by the saved weights alone: the given label's probability, is it flagged
    division: Bools | None = None  # (N,) clean by the epoch that consistency training starts from; None: by the verdict
    out_of_fold: bool = False  # every row was scored by heads that never saw its label
    course: npt.NDArray[np.float32] | None = None  # (E, N) margins at the last E scorings, the last epoch's last


@dataclass(frozen=True)
class Verdicts:
    """What the sieve says of every readable row, and why."""

    loss: Floats  # (N,), as all below
    regularizer: Floats
    regularized_loss: Floats
    threshold: Floats
    margin: Floats  # zero or above: corrupted
    corrupted: Bools
    paper_corrupted: Bools  # the same with the paper's eps
    rank: Ints  # 1 = most suspicious
    label_probability: Floats
    corruption_probability: Floats
    undecided: int  # rows whose margin is zero within rounding
