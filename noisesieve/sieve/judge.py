"""Scores → Verdicts: the threshold, the ranking and the probability of every row."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from noisesieve.records import Bools, Ints, Scores, Verdicts
from noisesieve.sieve.calibrate import by_transition, corruption_probability, doubt
from noisesieve.sieve.formulas import PAPER_EPS, Decision, decide, margin, undecided

BLOCK = 65_536  # rows at a time: the terms of a million rows and a thousand classes would not fit beside each other


def _decide_in_blocks(probs: Tensor, given: Tensor, prior: Tensor, beta: float, eps: float) -> Decision:
    parts = [
        decide(p, y, prior=prior, beta=beta, eps=eps)
        for p, y in zip(probs.split(BLOCK), given.split(BLOCK), strict=True)
    ]
    return Decision(*(torch.cat([getattr(part, name.name) for part in parts]) for name in fields(Decision)))


def judge(scores: Scores, labels: Ints, *, eps: float, trusted: Bools) -> Verdicts:
    """Apply the closed-form threshold once, to the averaged probabilities. Trusted rows are clean by decree."""
    probs = torch.from_numpy(scores.probs)  # (N, K) float64
    given = torch.from_numpy(labels)
    believed = torch.from_numpy(trusted)
    decision = _decide_in_blocks(probs, given, torch.from_numpy(scores.prior), scores.beta, eps)
    paper = torch.cat([margin(p, y, PAPER_EPS) for p, y in zip(probs.split(BLOCK), given.split(BLOCK), strict=True)])
    label_probs = probs.gather(1, given[:, None]).squeeze(1)
    # The margin decides, but the given label's probability ranks: the margin grows for undecided predictions.
    order = np.lexsort((np.arange(len(labels)), -decision.margin.numpy(), label_probs.numpy()))
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(1, len(labels) + 1)
    corrupted = decision.corrupted & ~believed
    if scores.out_of_fold:
        chance = by_transition(probs, given, torch.from_numpy(order))
    else:
        torn = torch.zeros_like(corrupted) if scores.torn is None else torch.from_numpy(scores.torn)
        chance = corruption_probability(label_probs, corrupted, torch.from_numpy(order), doubted=doubt(torn, corrupted))
    return Verdicts(
        loss=decision.loss.numpy(),
        regularizer=decision.regularizer.numpy(),
        regularized_loss=decision.regularized_loss.numpy(),
        threshold=decision.threshold.numpy(),
        margin=decision.margin.numpy(),
        corrupted=corrupted.numpy(),
        paper_corrupted=((paper >= 0) & ~believed).numpy(),
        rank=rank,
        label_probability=label_probs.numpy(),
        corruption_probability=chance.numpy(),
        undecided=undecided(decision.margin),
    )
