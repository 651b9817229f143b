"""Scores → Verdicts: the threshold, the rank and the corruption probability of every row."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from noisesieve.core.records import Bools, Ints, NoiseModel, Scores, Verdicts
from noisesieve.sieve.calibrate import (
    corruption_probability,
    expected_precision,
    never_rising,
    precision_from_agreement,
    suspect_disagreement,
)
from noisesieve.sieve.formulas import PAPER_EPS, ThresholdTerms, apply_threshold, in_float64, margin, undecided
from noisesieve.sieve.noise_model import fit_noise_model, probability_of_wrong
from noisesieve.sieve.ranking import fit_rank_model, suspicion

BLOCK_VALUES = 2**19  # probabilities in float64 at a time: those of all rows would not fit in memory
FLOORS: tuple[float, ...] = tuple(
    10.0 ** (-step / 4) for step in range(49)
)  # 1 to 1e-12; every one satisfies Theorem 2
FLOOR_VALUES = 2**25  # probabilities that a floor is chosen from, at most


def _blocks(probs: Tensor, given: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield probabilities in float64, and given labels, of a few rows at a time."""
    rows = max(1, BLOCK_VALUES // probs.shape[1])
    for part, labels in zip(probs.split(rows), given.split(rows), strict=True):
        yield in_float64(part), labels


def _apply_in_blocks(
    probs: Tensor, given: Tensor, prior: Tensor, beta: float, *, eps: float, exact: bool
) -> tuple[ThresholdTerms, Tensor, Tensor]:
    """Return the terms of every row, its margin by the paper's rule, and the probability of its label."""
    count = len(given)
    loss, cr, regularized, threshold, gap = torch.empty((5, count), dtype=torch.float64)
    terms = ThresholdTerms(loss, cr, regularized, threshold, gap, torch.empty(count, dtype=torch.bool))
    paper, label_probs = torch.empty((2, count), dtype=torch.float64)
    start = 0
    for part, labels in _blocks(probs, given):
        rows = slice(start, start := start + len(labels))
        found = apply_threshold(part, labels, prior=prior, beta=beta, eps=eps, exact=exact)
        for name in fields(ThresholdTerms):
            getattr(terms, name.name)[rows] = getattr(found, name.name)
        paper[rows] = margin(part, labels, PAPER_EPS, exact=True)
        label_probs[rows] = part.gather(1, labels[:, None]).squeeze(1)
    return terms, paper, label_probs


def choose_floor(probs: Tensor, labels: Tensor) -> tuple[float, NoiseModel]:
    """Return the floor eps with which about as many rows are flagged as are expected to be wrong.

    `probs` (N, K) are out of fold. With two classes every floor gives the same verdict. Also returned is the noise
    model by which they are expected to be wrong.
    """
    model = fit_noise_model(probs, labels)
    share = float(probability_of_wrong(probs, labels, model).mean())
    part = slice(None, None, -(-probs.numel() // FLOOR_VALUES))
    sample, given = probs[part], labels[part]

    @functools.cache
    def flagged(step: int) -> float:
        return sum(int((margin(p, y, FLOORS[step]) >= 0).sum()) for p, y in _blocks(sample, given)) / len(given)

    # A smaller floor never flags more, so that the gap to the share falls and then rises.
    above = bisect.bisect_left(range(len(FLOORS)), True, key=lambda step: flagged(step) <= share)
    beside = [step for step in (above - 1, above) if 0 <= step < len(FLOORS)]
    near = min(beside, key=lambda step: abs(flagged(step) - share))
    first = bisect.bisect_left(range(near + 1), True, key=lambda step: flagged(step) <= flagged(near))
    return FLOORS[first], model


def _expected_precision(scores: Scores, corrupted: Tensor) -> float:
    """Return how many of a network's suspects are expected to be wrong; without held-out rows from two opinions."""
    if scores.held_out_accuracy is not None:
        return precision_from_agreement(scores.held_out_accuracy, float(corrupted.double().mean()))
    disagree = torch.zeros_like(corrupted) if scores.disagree is None else torch.from_numpy(scores.disagree)
    return expected_precision(suspect_disagreement(disagree, corrupted))


def decide(scores: Scores, labels: Ints, *, eps: float, trusted: Bools, exact: bool = False) -> Verdicts:
    """Apply the closed-form threshold once, to the averaged probabilities. Trusted rows are always clean.

    With `exact` the label's own term has no floor; that of `paper_corrupted` never has.
    """
    probs = torch.from_numpy(scores.probs)  # (N, K) float32
    given = torch.from_numpy(labels)
    trusted_rows = torch.from_numpy(trusted)
    terms, paper, label_probs = _apply_in_blocks(
        probs, given, torch.from_numpy(scores.prior), scores.beta, eps=eps, exact=exact
    )
    corrupted = terms.corrupted & ~trusted_rows
    model, doubt = scores.rank_model, -label_probs
    if scores.out_of_fold:
        ce_probs = None if scores.ce_probs is None else torch.from_numpy(scores.ce_probs)
        model = model or fit_rank_model(probs, ce_probs, given, scores.noise_model)
        doubt = suspicion(probs, ce_probs, given, model)
    # Not by the margin, which is largest for undecided predictions: that only breaks ties.
    order = np.lexsort((np.arange(len(labels)), -terms.margin.numpy(), label_probs.numpy(), -doubt.numpy()))
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(1, len(labels) + 1)
    if model is not None:
        wrong = never_rising(probability_of_wrong(probs, given, model.noise_model), torch.from_numpy(order))
    else:
        precision = _expected_precision(scores, corrupted)
        wrong = corruption_probability(label_probs, corrupted, torch.from_numpy(order), precision=precision)
    return Verdicts(
        loss=terms.loss.numpy(),
        regularizer=terms.regularizer.numpy(),
        regularized_loss=terms.regularized_loss.numpy(),
        threshold=terms.threshold.numpy(),
        margin=terms.margin.numpy(),
        corrupted=corrupted.numpy(),
        paper_corrupted=((paper >= 0) & ~trusted_rows).numpy(),
        rank=rank,
        label_probability=label_probs.numpy(),
        corruption_probability=wrong.numpy(),
        undecided=undecided(terms.margin),
        suspicion=None if model is None else doubt.numpy(),
        rank_model=model,
    )
