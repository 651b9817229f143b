"""Metrics of verdicts, rankings and probabilities against the truth. Pure functions of arrays, one entry per row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from noisesieve.core.records import Bools, Floats, Ints

BINS = 10  # of equal width, for the expected calibration error


@dataclass(frozen=True)
class Detection:
    """A verdict against the truth. A share of zero rows is None."""

    flagged: int
    right: int  # flagged and wanted
    wanted: int  # rows that should be flagged
    precision: float | None
    recall: float | None
    f1: float | None


def detection(flagged: Bools, wanted: Bools) -> Detection:
    """Return precision, recall and F1 of a verdict."""
    right, positives, total = int((flagged & wanted).sum()), int(flagged.sum()), int(wanted.sum())
    return Detection(
        flagged=positives,
        right=right,
        wanted=total,
        precision=_share(right, positives),
        recall=_share(right, total),
        f1=_share(2 * right, positives + total),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def average_precision(suspicion: Floats, wanted: Bools) -> float | None:
    """Return the area under the precision-recall curve, as a sum over its steps; None without a wanted row."""
    if not wanted.any():
        return None
    precision, recall = precision_recall_curve(suspicion, wanted)
    return float((np.diff(recall, prepend=0.0) * precision).sum())


def precision_recall_curve(suspicion: Floats, wanted: Bools) -> tuple[Floats, Floats]:
    """Return precision and recall at every threshold, most suspicious first. Ties are one threshold."""
    order = np.argsort(-suspicion, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(suspicion[order]) != 0, True))  # the last row of each tie
    right = np.cumsum(wanted[order])[ends].astype(np.float64)
    return right / (ends + 1), right / max(1, int(wanted.sum()))


def area_under_roc(suspicion: Floats, wanted: Bools) -> float | None:
    """Return P(a wanted row is more suspicious than another), ties counted half; None if either kind is missing."""
    positives = int(wanted.sum())
    negatives = len(wanted) - positives
    if positives == 0 or negatives == 0:
        return None
    _, value, counts = np.unique(suspicion, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2  # the mean rank of each tie
    ranks = middle[value]
    return float((ranks[wanted].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def precision_at(order: Ints, wanted: Bools, depths: list[int]) -> dict[int, float]:
    """Return the share of wanted rows among the first k of `order`, for every depth k up to its length."""
    right = np.cumsum(wanted[order])
    return {k: float(right[k - 1]) / k for k in depths if 0 < k <= len(order)}


@dataclass(frozen=True)
class Calibration:
    """How far predicted probabilities are from observed frequencies."""

    ece: float  # expected calibration error: the mean gap between the two, weighted by rows
    brier: float
    bins: list[dict[str, float]]  # rows, mean probability, share truly wrong


def calibration(probability: Floats, wanted: Bools) -> Calibration:
    """Return the expected calibration error over ten bins of equal width, and the Brier score."""
    number = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
    rows = np.bincount(number, minlength=BINS)
    predicted = np.bincount(number, weights=probability, minlength=BINS)
    true = np.bincount(number, weights=wanted, minlength=BINS)
    bins = [
        {"rows": int(rows[i]), "predicted": float(predicted[i] / rows[i]), "wrong": float(true[i] / rows[i])}
        for i in np.flatnonzero(rows > 0)
    ]
    return Calibration(
        ece=float(np.abs(predicted - true).sum() / max(1, len(wanted))),
        brier=float(np.square(probability - wanted).mean()) if len(wanted) else 0.0,
        bins=bins,
    )
