"""The charts of the page, as counts: confusions of the suspects, and margins of all rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from noisesieve.core.text import natural_key
from noisesieve.report.report import Report

HEAT_CLASSES = 16  # classes in the heat map; more would be unreadable
HEAT_STEPS = 6
BINS = 48


@dataclass(frozen=True)
class HeatMap:
    """Suspects by given and suggested label, for the classes with most suspects."""

    labels: list[tuple[int, str]]  # number of the class, and its name
    rows: list[list[tuple[int, int]]]  # count and shade, by given and suggested label
    left_out: int  # classes that are not shown


@dataclass(frozen=True)
class Histogram:
    """Counts of clean and corrupted rows by margin; zero is the edge of a bin."""

    low: float
    high: float
    clean: list[int]
    corrupted: list[int]


def count_confusions(suspects: pa.Table, classes: list[str]) -> HeatMap:
    """Count suspects by given and suggested label, for the classes with most suspects."""
    given, to = suspects["label"].to_pylist(), suspects["suggested_label"].to_pylist()
    pairs = Counter((a, b) for a, b in zip(given, to, strict=True) if b is not None)
    part: Counter[str] = Counter()
    for (a, b), count in pairs.items():
        part[a] += count
        part[b] += count
    taken = sorted((label for label, _ in part.most_common(HEAT_CLASSES)), key=natural_key)
    most = max((pairs[a, b] for a in taken for b in taken), default=0)
    number = {label: i for i, label in enumerate(classes)}
    return HeatMap(
        labels=[(number[label], label) for label in taken],
        rows=[
            [(pairs[a, b], -(-pairs[a, b] * HEAT_STEPS // most) if most and pairs[a, b] else 0) for b in taken]
            for a in taken
        ],
        left_out=len(part) - len(taken),
    )


def count_margins(report: Report) -> Histogram:
    """Return the histogram of margins of clean and of corrupted rows; zero is the edge of a bin."""
    margins = report.numbers("margin")
    flagged = report.verdicts == "corrupted"
    known = ~np.isnan(margins)
    margins, flagged = margins[known], flagged[known]
    reach = max(float(np.abs(margins).max(initial=0.0)), 1e-9)
    edges = np.linspace(-reach, reach, BINS + 1)
    clean, corrupted = (np.histogram(margins[kind], edges)[0].tolist() for kind in (~flagged, flagged))
    return Histogram(-reach, reach, clean, corrupted)
