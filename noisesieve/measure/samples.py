"""People's decisions as truth: a random sample over the whole ranking, and what it says about a run.

The sample is drawn in equal parts from three strata: the flagged rows, as many rows just below them, and the rest. Most
rows of the rest are right, so a plain random sample would hold next to no wrong label. What is measured is weighted by
the sizes of the strata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from noisesieve.core.records import Bools, Floats, Ints
from noisesieve.report.intervals import wilson_interval
from noisesieve.report.report import Report

DRAWS = 20_000  # of the shares of wrong labels, for intervals
PRIOR = 0.5  # Jeffreys' prior of a share


class DecidedLabel(Protocol):
    """What a person decided about a row."""

    @property
    def label(self) -> str | None:
        """The right label; None: the image is unusable."""
        ...

    @property
    def sampled(self) -> bool:
        """Whether it is a row of the random sample."""
        ...


@dataclass(frozen=True)
class Measured:
    """A share with its 95 % interval, and the number of rows that it was counted on."""

    value: float | None
    low: float
    high: float
    rows: int


@dataclass(frozen=True)
class Judgement:
    """What decisions say about a run. Unusable images take no part."""

    decided: int
    wrong: int  # of those, labels that were changed
    sampled: int  # of those, rows of the random sample
    precision: Measured  # of the flagged rows that were decided; of the sample alone if it has some
    from_sample: bool  # precision is that of the sample, so it holds for all flagged rows
    recall: Measured | None  # None without a sample
    noise_rate: Measured | None


def strata(report: Report) -> list[Ints]:
    """Return the rows of the three strata: flagged, just below, and the rest. What people know is in none.

    These are waived, trusted and decided rows.
    """
    flagged = report.verdicts == "corrupted"
    known = report.numbers("waived") | report.column("decided").is_valid().to_numpy() | report.numbers("trusted")
    taken = (report.verdicts != "unreadable") & ~known
    rank = np.nan_to_num(report.numbers("rank").astype(np.float64), nan=np.inf)
    order = np.argsort(rank, kind="stable")
    others = order[(taken & ~flagged)[order]]
    count = max(int((taken & flagged).sum()), len(others) // 50)
    return [order[(taken & flagged)[order]], others[:count], others[count:]]


def draw_probe(report: Report, count: int, *, seed: int) -> Ints:
    """Return a random sample of rows, in equal parts from the strata, in random order."""
    rng, parts = np.random.default_rng(seed), strata(report)
    sizes = _divide(count, [len(part) for part in parts])
    chosen = [rng.choice(part, size, replace=False) for part, size in zip(parts, sizes, strict=True)]
    return rng.permutation(np.concatenate(chosen)).astype(np.int64)


def _divide(count: int, sizes: list[int]) -> list[int]:
    """Return equal parts of `count` that are at most `sizes`; what does not fit goes to the others."""
    parts = [0] * len(sizes)
    for _ in range(min(count, sum(sizes))):
        smallest = min((i for i, size in enumerate(sizes) if parts[i] < size), key=lambda i: parts[i])
        parts[smallest] += 1
    return parts


def judge(report: Report, outcomes: Mapping[int, DecidedLabel]) -> Judgement:
    """Return precision, recall and noise rate by the decisions."""
    rows, wrong = wrong_labels(report, outcomes)
    is_wrong = dict(zip(rows.tolist(), wrong.tolist(), strict=True))
    parts, drawn = strata(report), {row for row in is_wrong if outcomes[row].sampled}
    seen = [[is_wrong[row] for row in part.tolist() if row in drawn] for part in parts]
    flagged = [is_wrong[row] for row in parts[0].tolist() if row in is_wrong]
    of = seen[0] or flagged
    low, high = wilson_interval(sum(of), len(of))
    complete = all(decided or not len(part) for decided, part in zip(seen, parts, strict=True)) and any(seen)
    recall, rate = _weighted(seen, [len(part) for part in parts]) if complete else (None, None)
    return Judgement(
        decided=len(rows),
        wrong=int(wrong.sum()),
        sampled=len(drawn),
        precision=Measured(sum(of) / len(of) if of else None, low, high, len(of)),
        from_sample=bool(seen[0]),
        recall=recall,
        noise_rate=rate,
    )


def wrong_labels(report: Report, outcomes: Mapping[int, DecidedLabel]) -> tuple[Ints, Bools]:
    """Return the decided rows that are usable, and which of them were relabelled."""
    usable = sorted(row for row, outcome in outcomes.items() if outcome.label is not None)
    given = report.take(np.array(usable, dtype=np.int64), "label")["label"].to_pylist()
    wrong = [outcomes[row].label != label for row, label in zip(usable, given, strict=True)]
    return np.array(usable, dtype=np.int64), np.array(wrong, dtype=np.bool_)


def _weighted(seen: list[list[bool]], sizes: list[int]) -> tuple[Measured, Measured]:
    """Return recall and noise rate of a stratified sample; the intervals are quantiles of drawn shares."""
    rng, total = np.random.default_rng(0), max(1, sum(sizes))
    shares: list[Floats] = [
        size * rng.beta(sum(decided) + PRIOR, len(decided) - sum(decided) + PRIOR, DRAWS)
        for decided, size in zip(seen, sizes, strict=True)
    ]
    point = [size * sum(decided) / len(decided) if decided else 0.0 for decided, size in zip(seen, sizes, strict=True)]
    count = sum(map(len, seen))
    every = np.sum(shares, axis=0)
    low, high = np.quantile(every / total, (0.025, 0.975)).tolist()
    rate = Measured(sum(point) / total, min(low, sum(point) / total), max(high, sum(point) / total), count)
    value = point[0] / sum(point) if sum(point) else None
    low, high = np.quantile(shares[0] / every, (0.025, 0.975)).tolist()
    if value is not None:
        low, high = min(low, value), max(high, value)
    return Measured(value, low, high, count), rate
