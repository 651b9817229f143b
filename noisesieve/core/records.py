"""The records that rooms pass to each other. Rows are never reordered.

Index and FileFacts have one entry per row; Pixels, Scores and Verdicts have one per readable row, in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from noisesieve.core.columns import Hashes, Texts

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Probabilities = npt.NDArray[np.float32]  # (N, K): computed with in float64, block by block
Bytes = npt.NDArray[np.uint8]
DECIDED_COLUMN = "noisesieve_decided"  # of a user's table: how `apply` remembers what people decided


@dataclass(frozen=True)
class ImageLocation:
    """Where one row's image is stored: a file, or a cell of a table.

    In a table, `column` is the image column and `position` the row (Parquet) or the byte offset of the line (JSONL).
    """

    file: str
    column: str | None = None
    position: int = 0


@dataclass(frozen=True)
class Index:
    """The dataset as the user stores it: one entry per row, in a stable order. Lists of texts become columns."""

    name: str
    kind: str  # a key of SOURCES
    root: Path
    ids: Sequence[str]
    paths: Sequence[str | None]  # relative to the root, escaped; None where the image is embedded
    labels: Sequence[str]
    locate: Callable[[int], ImageLocation]
    lines: Ints | None = None  # line in the table, counted from 1
    splits: Sequence[str] | None = None
    trusted: Bools | None = None
    carried: pa.Table | None = None  # the user's other columns; copied to the report, never read by training
    label_column: str = "label"
    notes: list[str] = field(default_factory=list)  # messages about skipped files
    warnings: list[str] = field(default_factory=list)  # about what is probably a mistake

    def __post_init__(self) -> None:
        for name in ("ids", "paths", "labels", "splits"):
            values = getattr(self, name)
            if values is not None and not isinstance(values, Texts):
                object.__setattr__(self, name, Texts(values, few=name in ("labels", "splits")))

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, name: str) -> Texts:
        """Return ids, paths, labels or splits as a column."""
        values = getattr(self, name)
        assert isinstance(values, Texts)
        return values

    def take(self, rows: Ints) -> Index:
        """Return the index of these rows, in this order."""
        locate = self.locate
        return Index(
            name=self.name,
            kind=self.kind,
            root=self.root,
            ids=self.column("ids").take(rows),
            paths=self.column("paths").take(rows),
            labels=self.column("labels").take(rows),
            locate=lambda i: locate(int(rows[i])),
            lines=None if self.lines is None else self.lines[rows],
            splits=None if self.splits is None else self.column("splits").take(rows),
            trusted=None if self.trusted is None else self.trusted[rows],
            carried=None if self.carried is None else self.carried.take(pa.array(rows)),
            label_column=self.label_column,
            notes=self.notes,
            warnings=self.warnings,
        )


@dataclass(frozen=True)
class FileFacts:
    """The result of reading each file without decoding it: content hash, size from the header, and status."""

    sha256: Sequence[str | None]
    status: Sequence[str]  # "ok", or the reason this row cannot be read
    width: Ints
    height: Ints

    def __post_init__(self) -> None:
        if not isinstance(self.sha256, Hashes):
            object.__setattr__(self, "sha256", Hashes(self.sha256))
        if not isinstance(self.status, Texts):
            object.__setattr__(self, "status", Texts(self.status, few=True))

    @property
    def hashes(self) -> Hashes:
        """The content hashes as a column."""
        assert isinstance(self.sha256, Hashes)
        return self.sha256

    @functools.cached_property
    def readable(self) -> Bools:
        assert isinstance(self.status, Texts)
        readable: Bools = self.status.codes(["ok"]) == 0
        return readable

    def with_status(self, failed: Mapping[str, str]) -> FileFacts:
        """Return the facts with another status for some contents, by their hash."""
        if not failed:
            return self
        status = list(self.status)
        for row in np.flatnonzero(self.hashes.is_in(Hashes(failed))).tolist():
            status[row] = failed[str(self.sha256[row])]
        return replace(self, status=status)

    @property
    def longest_sides(self) -> Ints:
        """The longer side of every readable image."""
        return np.maximum(self.width, self.height)[self.readable]


class Pixels(Protocol):
    """uint8 images at training size, one per readable row."""

    def __len__(self) -> int: ...

    @property
    def size(self) -> int: ...

    def batches(self, order: Sequence[Ints]) -> Iterator[Bytes]:
        """Yield the images (B, S, S, 3) of each array of rows, in that order."""
        ...


@dataclass(frozen=True)
class Recalibration:
    """How decisions corrected the probabilities of a run: logit P' = shift + slope * logit P."""

    shift: float
    slope: float
    decisions: int


@dataclass(frozen=True)
class NoiseModel:
    """How given labels come about: the true class is distributed as f with a temperature, the label by a transition."""

    temperature: float
    strength: float  # of the prior of the transition
    transition: Floats  # (K, K): P(given | true)


@dataclass(frozen=True)
class RankModel:
    """What ranks rows that were scored out of fold."""

    noise_model: NoiseModel  # of the probabilities that decide
    combined: NoiseModel  # of their geometric mean with those of cross-entropy heads; the same without such heads


@dataclass(frozen=True)
class Scores:
    """The result of training: class probabilities of every readable row, and the history of the training."""

    probs: Probabilities  # (N, K), averaged over the views and epochs that count
    flagged_epochs: Floats | None  # (N,) share of the sieve epochs in which the row was dropped; None: no training
    prior: Floats  # (K,)
    beta: float
    # (N,) True where CE snapshot and regularized network predict different other classes; None: no snapshot
    disagree: Bools | None = None
    # (N, 2) from the saved weights alone: probability of the given label, and 1 where they flag the row
    saved_model_scores: Floats | None = None
    held_out_accuracy: float | None = None  # of a network on given labels that it was not trained on
    early_clean: Bools | None = None  # (N,) clean at the epoch that consistency training uses; None: use the verdict
    out_of_fold: bool = False  # True: every row was scored by heads that were not trained on it
    sieve_eps: float | None = None  # the floor of the verdict, if it was chosen from these scores
    noise_model: NoiseModel | None = None  # what was fitted to choose it
    ce_probs: Probabilities | None = None  # (N, K) of cross-entropy heads, for the rank alone
    rank_model: RankModel | None = None  # what ranks; None: fitted to these scores, if they are out of fold
    margin_history: Sequence[npt.NDArray[np.float32]] | None = None  # (N,) margins of each of the last scoring passes


@dataclass(frozen=True)
class Verdicts:
    """The verdict of every readable row, with the terms of the closed form."""

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
    suspicion: Floats | None = None  # what the rank orders by, the largest first; None: label_probability
    rank_model: RankModel | None = None
    recalibration: Recalibration | None = None  # how decisions corrected the probabilities
