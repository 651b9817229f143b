"""The records that rooms pass to each other. Rows are never reordered.

Index and FileFacts have one entry per row; Pixels, Scores and Verdicts have one per readable row, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from noisesieve.core.recipes import HeadRecipe

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


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
    """The dataset as the user stores it: one entry per row, in a stable order."""

    name: str
    kind: str  # a key of SOURCES
    root: Path
    ids: list[str]
    paths: list[str | None]  # relative to the root, escaped; None where the image is embedded
    labels: list[str]
    locate: Callable[[int], ImageLocation]
    lines: Ints | None = None  # line in the table, counted from 1
    splits: list[str] | None = None
    trusted: Bools | None = None
    carried: pa.Table | None = None  # the user's other columns; copied to the report, never read by training
    label_column: str = "label"
    notes: list[str] = field(default_factory=list)  # messages about skipped files
    warnings: list[str] = field(default_factory=list)  # about what is probably a mistake

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Ints) -> Index:
        """Return the index of these rows, in this order."""
        picked = rows.tolist()
        locate = self.locate
        return Index(
            name=self.name,
            kind=self.kind,
            root=self.root,
            ids=[self.ids[i] for i in picked],
            paths=[self.paths[i] for i in picked],
            labels=[self.labels[i] for i in picked],
            locate=lambda i: locate(picked[i]),
            lines=None if self.lines is None else self.lines[rows],
            splits=None if self.splits is None else [self.splits[i] for i in picked],
            trusted=None if self.trusted is None else self.trusted[rows],
            carried=None if self.carried is None else self.carried.take(pa.array(rows)),
            label_column=self.label_column,
            notes=self.notes,
            warnings=self.warnings,
        )


@dataclass(frozen=True)
class FileFacts:
    """The result of reading each file without decoding it: content hash, size from the header, and status."""

    sha256: list[str | None]
    status: list[str]  # "ok", or the reason this row cannot be read
    width: Ints
    height: Ints

    @property
    def readable(self) -> Bools:
        return np.array([status == "ok" for status in self.status], dtype=np.bool_)


class Pixels(Protocol):
    """uint8 images at training size, one per readable row."""

    def __len__(self) -> int: ...

    @property
    def size(self) -> int: ...

    def batches(self, order: Sequence[Ints]) -> Iterator[Bytes]:
        """Yield the images (B, S, S, 3) of each array of rows, in that order."""
        ...


@dataclass(frozen=True)
class EpochRow:
    """One row of history.parquet."""

    epoch: int
    phase: str
    beta: float
    learning_rate: float
    train_loss: float | None
    kept: int
    flagged: int
    undecided: int
    steps: int
    skipped_steps: int
    train_seconds: float
    score_seconds: float
    images_per_second: float


@dataclass(frozen=True)
class Agreement:
    """How often the given label is predicted for rows that the predictor was not trained on."""

    agreement: float
    class_agreement: float  # the mean over the classes

    @property
    def score(self) -> float:
        """What depths and loss are chosen by: it needs no truth."""
        return (self.agreement + self.class_agreement) / 2


@dataclass(frozen=True)
class DepthEvidence(Agreement):
    """The agreement of least squares on some depths of a network."""

    depths: list[str]


@dataclass(frozen=True)
class LossEvidence(Agreement):
    """The agreement of heads that were trained with some loss."""

    beta: float
    prior: str
    weight_decay: float
    loop_eps: float

    def is_of(self, recipe: HeadRecipe) -> bool:
        """Return True if this is the loss of a recipe."""
        own = (self.beta, self.prior, self.weight_decay, self.loop_eps)
        return own == (recipe.beta, recipe.prior, recipe.weight_decay, recipe.loop_eps)


@dataclass(frozen=True)
class Recalibration:
    """How decisions corrected the probabilities of a run: logit P' = shift + slope * logit P."""

    shift: float
    slope: float
    decisions: int


@dataclass(frozen=True)
class JudgeEvidence:
    """How often a model predicts the given label of rows that it was not trained on."""

    judge: str  # network or heads
    agreement: float


@dataclass(frozen=True)
class TrainingFacts:
    """What was chosen during training."""

    warmup_epochs: int
    epochs: int
    sieve_start: int
    flip: bool
    held_out: int  # rows that chose the length of the warm-up; on the frozen path all rows are scored out of fold
    held_out_agreement: list[float]  # mean probability of their given labels, at each evaluation
    loop_eps: float
    heads: int | None = None  # None: a network was trained
    compared_depths: list[DepthEvidence] | None = None  # what the depths of the features were chosen from
    compared_losses: list[LossEvidence] | None = None  # what beta, prior and weight decay were chosen from
    held_out_accuracy: float | None = None  # of a network on the held-out rows' given labels, after the warm-up
    compared_judges: list[JudgeEvidence] | None = None  # the model that decides comes first


@dataclass(frozen=True)
class NoiseModel:
    """How given labels come about: the true class is distributed as f with a temperature, the label by a transition."""

    temperature: float
    transition: Floats  # (K, K): P(given | true)


@dataclass(frozen=True)
class Scores:
    """The result of training: class probabilities of every readable row, and the history of the training."""

    probs: Floats  # (N, K), averaged over the views and epochs that count
    flagged_epochs: Floats | None  # (N,) share of the sieve epochs in which the row was dropped; None: no training
    prior: Floats  # (K,)
    beta: float
    history: list[EpochRow]
    facts: TrainingFacts | None  # None: no training
    # (N,) True where CE snapshot and regularized network predict different other classes; None: no snapshot
    disagree: Bools | None = None
    # (N, 2) from the saved weights alone: probability of the given label, and 1 where they flag the row
    saved_model_scores: Floats | None = None
    division: Bools | None = None  # (N,) clean at the epoch that consistency training uses; None: use the verdict
    out_of_fold: bool = False  # True: every row was scored by heads that were not trained on it
    sieve_eps: float | None = None  # the floor of the verdict, if it was chosen from these scores
    noise_model: NoiseModel | None = None  # what was fitted to choose it
    margin_history: npt.NDArray[np.float32] | None = None  # (E, N) margins of the last E scoring passes


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
    recalibration: Recalibration | None = None  # how decisions corrected the probabilities


@dataclass(frozen=True)
class ModelSummary:
    """How the saved weights alone, which are not the whole verdict, score the rows they were trained on."""

    flagged: int  # clean rows that these weights alone would flag
    of: int  # clean rows, by the verdict
    # P(label wrong) as a piecewise linear curve over ln f[y]: the knots
    log_probability: list[float]
    corruption_probability: list[float]
