"""Paired differences of two methods on the same rows, with intervals from a bootstrap over these rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from noisesieve.core.records import Bools, Floats, Ints

DRAWS = 1000
BLOCK = 100  # draws at a time
Figure = Callable[[Ints], Floats]  # of how often each row was drawn, (B, N), to one figure per draw, (B,)


@dataclass(frozen=True)
class Difference:
    """A difference with its 95 % interval."""

    value: float
    low: float
    high: float


def precision_difference(mine: Floats, other: Floats, wanted: Bools, *, seed: int = 0) -> Difference:
    """Return the difference of the average precision of two rankings, larger values first."""
    first, second = (np.argsort(-suspicion, kind="stable") for suspicion in (mine, other))
    return _difference(partial(_precision, first, wanted), partial(_precision, second, wanted), len(wanted), seed)


def f1_difference(mine: Bools, other: Bools, wanted: Bools, *, seed: int = 0) -> Difference:
    """Return the difference of F1 of two verdicts."""
    return _difference(partial(_f1, mine, wanted), partial(_f1, other, wanted), len(wanted), seed)


def _difference(first: Figure, second: Figure, rows: int, seed: int) -> Difference:
    rng, drawn = np.random.default_rng(seed), []
    for _ in range(DRAWS // BLOCK):
        counts = rng.multinomial(rows, np.full(rows, 1 / rows), size=BLOCK)
        drawn.append(first(counts) - second(counts))
    once = np.ones((1, rows), dtype=np.int64)
    low, high = np.quantile(np.concatenate(drawn), (0.025, 0.975)).tolist()
    return Difference(float((first(once) - second(once))[0]), low, high)


def _precision(order: Ints, wanted: Bools, counts: Ints) -> Floats:
    """Return the average precision of each draw, (B,)."""
    drawn = counts[:, order].astype(np.float64)
    hits = drawn * wanted[order]
    precision = np.cumsum(hits, axis=1) / np.maximum(np.cumsum(drawn, axis=1), 1)
    average: Floats = (hits * precision).sum(axis=1) / np.maximum(hits.sum(axis=1), 1)
    return average


def _f1(flagged: Bools, wanted: Bools, counts: Ints) -> Floats:
    """Return F1 of each draw, (B,)."""
    right, positives, total = counts @ (flagged & wanted), counts @ flagged, counts @ wanted
    figure: Floats = 2 * right / np.maximum(positives + total, 1)
    return figure
