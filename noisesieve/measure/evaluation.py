"""Evaluate a run against known right labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from noisesieve.core.errors import InputError
from noisesieve.core.records import Bools, Floats, Ints
from noisesieve.core.text import carried_name, natural_key
from noisesieve.measure.metrics import (
    Calibration,
    Detection,
    area_under_roc,
    average_precision,
    calibration,
    detection,
    precision_at,
)
from noisesieve.measure.truth import LabelledRows
from noisesieve.report.report import Report
from noisesieve.report.schema import COLUMNS, SPLIT

DEPTHS = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000]


def labelled_rows(report: Report) -> LabelledRows:
    """Return the rows of a report, for matching them with a truth."""
    ours = {*COLUMNS, SPLIT}
    own = {carried_name(name, ours): name for name in ours}  # without the prefix, as in the user's table
    users = report.columns(*(name for name in report.column_names if name not in COLUMNS))
    users = users.rename_columns([own.get(name, name) for name in users.column_names])
    return LabelledRows(report.texts("id"), report.texts("path"), report.texts("label"), users)


class EvaluatedRows:
    """The rows of a report that are readable and whose right label is known."""

    def __init__(self, report: Report, truth: list[str | None]) -> None:
        self.examples = len(report)
        known = np.array([label is not None for label in truth], dtype=np.bool_)
        readable = ~np.isnan(report.numbers("margin"))
        self.without_truth = int((readable & ~known).sum())
        if not (known & readable).any():
            raise InputError("No readable row has a known right label.", "Is the truth that of this dataset?")
        rows = np.flatnonzero(known & readable)
        scores = ("margin", "rank", "corruption_probability")
        part = report.take(rows, "label", "paper_verdict", "suggested_label", *scores)
        self.given = np.array(part["label"].to_pylist(), dtype=object)
        self.right = np.array([truth[i] for i in rows.tolist()], dtype=object)
        self.wrong: Bools = self.given != self.right
        self.flagged: Bools = report.verdicts[rows] == "corrupted"
        self.paper: Bools = np.array(part["paper_verdict"].cast(pa.string()).to_pylist(), dtype=object) == "corrupted"
        self.suggested = np.array(part["suggested_label"].to_pylist(), dtype=object)
        self.rank: Ints = part["rank"].to_numpy()
        self.margin: Floats = part["margin"].to_numpy()
        self.probability: Floats = part["corruption_probability"].to_numpy().astype(np.float64)

    def __len__(self) -> int:
        return len(self.wrong)

    @property
    def suspicion(self) -> Floats:
        """Larger is more suspicious, in the order of the report's rank."""
        return -self.rank.astype(np.float64)


@dataclass(frozen=True)
class BothVerdicts:
    """A verdict against the truth, from both sides."""

    corrupted: Detection
    clean: Detection


@dataclass(frozen=True)
class SuggestionCount:
    """Suggestions made for wrong labels, and how many of them are right."""

    made: int
    right: int


@dataclass(frozen=True)
class NoiseRates:
    """The share of wrong labels: the truth, the flagged share, and the estimate of the probabilities."""

    true: float
    flagged: float
    estimated: float
    error: float


@dataclass(frozen=True)
class ClassDetection:
    """The verdict against the truth for the rows of one given label."""

    label: str
    of: int
    flagged: int
    right: int
    wanted: int
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class Evaluation:
    """A run against the right labels."""

    run: str
    picture: str | None  # the chart; None if it could not be written
    examples: int
    measured: int
    without_truth: int
    wrong: int
    corrupted: Detection
    clean: Detection
    paper: BothVerdicts
    average_precision: float | None
    auc: float | None
    precision_at: dict[str, float]
    suggestions: SuggestionCount
    calibration: Calibration
    noise_rate: NoiseRates
    classes: list[ClassDetection]
    schema_version: int = 2


def evaluate_rows(rows: EvaluatedRows, run: str) -> Evaluation:
    """Return all figures of a run."""
    wrong = rows.wrong
    order = np.argsort(rows.rank)
    depths = sorted({*(k for k in DEPTHS if k <= len(rows)), int(wrong.sum())} - {0})
    estimated, true_rate = float(rows.probability.mean()), float(wrong.mean())
    suggestions = np.array([text is not None for text in rows.suggested], dtype=np.bool_) & wrong
    return Evaluation(
        run=run,
        picture=None,
        examples=rows.examples,
        measured=len(rows),
        without_truth=rows.without_truth,
        wrong=int(wrong.sum()),
        corrupted=detection(rows.flagged, wrong),
        clean=detection(~rows.flagged, ~wrong),
        paper=BothVerdicts(detection(rows.paper, wrong), detection(~rows.paper, ~wrong)),
        average_precision=average_precision(rows.suspicion, wrong),
        auc=area_under_roc(rows.suspicion, wrong),
        precision_at={str(k): value for k, value in precision_at(order, wrong, depths).items()},
        suggestions=SuggestionCount(
            made=int(suggestions.sum()), right=int((rows.suggested == rows.right)[suggestions].sum())
        ),
        calibration=calibration(rows.probability, wrong),
        noise_rate=NoiseRates(true_rate, float(rows.flagged.mean()), estimated, estimated - true_rate),
        classes=[_of_class(rows, name) for name in sorted(set(rows.given), key=natural_key)],
    )


def _of_class(rows: EvaluatedRows, name: str) -> ClassDetection:
    """Return the figures of the rows with this given label."""
    mine: Bools = rows.given == name
    return ClassDetection(name, int(mine.sum()), **vars(detection(rows.flagged[mine], rows.wrong[mine])))
