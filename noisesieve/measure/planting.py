"""Planted flips: drawn with the label pairs of a run's own suspects, and counted after a second scan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from noisesieve.core.errors import InputError
from noisesieve.core.records import Bools, Ints
from noisesieve.report.intervals import wilson_interval
from noisesieve.report.report import Report


@dataclass(frozen=True)
class PlantedEvaluation:
    """A second scan against the flips that were planted for it."""

    run: str
    planted: int
    found: int  # planted rows that are flagged
    recall: float
    recall_interval: tuple[float, float]
    unplanted: int
    flagged: int  # unplanted rows that are flagged
    newly_flagged: int  # rows that were not flagged before, planted ones included
    precision: float | None  # share of planted rows among these; None if there are none
    precision_interval: tuple[float, float]
    suspects_found_again: int
    suspects: int


def draw_flips(report: Report, readable: Bools, *, share: float, seed: int) -> tuple[Ints, list[str]]:
    """Choose rows and new labels; pairs are sampled in proportion to their count among suspects, plus one.

    A suspect is never given its suggested label: that might be the right one.
    """
    classes: list[str] = report.facts.classes
    number = {name: i for i, name in enumerate(classes)}
    rows = np.flatnonzero(readable)
    count = round(share * len(rows))
    if count == 0:
        raise InputError(f"{share:.1%} of {len(rows):,} rows is less than one row.", "Plant a larger share.")
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(rows, count, replace=False)).astype(np.int64)
    odds = np.ones((len(classes), len(classes)))  # row: suggested class; column: given class
    suspects = report.suspects(0.0, "label", "suggested_label")
    for given, suggested in zip(suspects["label"].to_pylist(), suspects["suggested_label"].to_pylist(), strict=True):
        if suggested is not None:
            odds[number[suggested], number[given]] += 1
    np.fill_diagonal(odds, 0.0)
    part = report.take(chosen, "label", "suggested_label")
    shown = np.array([number[label] for label in part["label"].to_pylist()], dtype=np.int64)
    own = odds[shown]  # (flips, K)
    if len(classes) > 2:
        for i, suggested in enumerate(part["suggested_label"].to_pylist()):
            if suggested is not None:
                own[i, number[suggested]] = 0.0
    steps = np.cumsum(own / own.sum(axis=1, keepdims=True), axis=1)
    drawn = (steps < rng.random(count)[:, None]).sum(axis=1).clip(max=len(classes) - 1)
    return chosen, [classes[i] for i in drawn.tolist()]


def measure_planted(before: Report, after: Report, planted: Bools) -> PlantedEvaluation:
    """Return recall of the planted rows, and their share among the rows that are flagged now and were not before."""
    verdict, suspects = after.verdicts, before.verdicts == "corrupted"
    flagged, readable = verdict == "corrupted", verdict != "unreadable"
    wanted, flagged_flips = int((planted & readable).sum()), int((planted & flagged).sum())
    new = flagged & ~suspects
    hits, count = int((new & planted).sum()), int(new.sum())
    return PlantedEvaluation(
        run=str(after.path.parent),
        planted=wanted,
        found=flagged_flips,
        recall=flagged_flips / max(1, wanted),
        recall_interval=wilson_interval(flagged_flips, wanted),
        unplanted=int((~planted & readable).sum()),
        flagged=int((~planted & flagged).sum()),
        newly_flagged=count,
        precision=hits / count if count else None,
        precision_interval=wilson_interval(hits, count),
        suspects_found_again=int((verdict[suspects & ~planted] == "corrupted").sum()),
        suspects=int((suspects & ~planted).sum()),
    )
