"""Scores → Verdicts: the threshold, the rank and the corruption probability of every row."""

from __future__ import annotations

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
from noisesieve.sieve.formulas import PAPER_EPS, ThresholdTerms, apply_threshold, margin, undecided
from noisesieve.sieve.noise_model import fit_noise_model, probability_of_wrong
from noisesieve.sieve.ranking import fit_rank_model, suspicion

BLOCK = 65_536  # rows at a time: the terms of a million rows and a thousand classes would not fit in memory


def _apply_in_blocks(
    probs: Tensor, given: Tensor, prior: Tensor, beta: float, *, eps: float, exact: bool
) -> ThresholdTerms:
    parts = [
        apply_threshold(p, y, prior=prior, beta=beta, eps=eps, exact=exact)
        for p, y in zip(probs.split(BLOCK), given.split(BLOCK), strict=True)
    ]
    return ThresholdTerms(*(torch.cat([getattr(part, name.name) for part in parts]) for name in fields(ThresholdTerms)))


FLOORS: tuple[float, ...] = tuple(
    10.0 ** (-step / 4) for step in range(49)
)  # 1 to 1e-12; every one satisfies Theorem 2
FLOOR_VALUES = 2**25  # probabilities that a floor is chosen from, at most


def choose_floor(probs: Tensor, labels: Tensor) -> tuple[float, NoiseModel]:
    """Return the floor eps with which about as many rows are flagged as are expected to be wrong.

    `probs` (N, K) are out of fold. With two classes every floor gives the same verdict. Also returned is the noise
    model by which they are expected to be wrong.
    """
    model = fit_noise_model(probs, labels)
    share = float(probability_of_wrong(probs, labels, model).mean())
    part = slice(None, None, -(-probs.numel() // FLOOR_VALUES))
    sample, given = probs[part], labels[part]
    gaps = [abs(float((margin(sample, given, eps) >= 0).double().mean()) - share) for eps in FLOORS]
    return min(zip(gaps, FLOORS, strict=True), key=lambda pair: pair[0])[1], model


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
    probs = torch.from_numpy(scores.probs)  # (N, K) float64
    given = torch.from_numpy(labels)
    trusted_rows = torch.from_numpy(trusted)
    terms = _apply_in_blocks(probs, given, torch.from_numpy(scores.prior), scores.beta, eps=eps, exact=exact)
    paper = torch.cat(
        [margin(p, y, PAPER_EPS, exact=True) for p, y in zip(probs.split(BLOCK), given.split(BLOCK), strict=True)]
    )
    label_probs = probs.gather(1, given[:, None]).squeeze(1)
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
