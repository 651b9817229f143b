"""Scores → Verdicts: the threshold, the ranking and the probability of every row."""

from __future__ import annotations

import numpy as np
import torch

from noisesieve.records import Bools, Ints, Scores, Verdicts
from noisesieve.sieve.calibrate import corruption_probability
from noisesieve.sieve.formulas import PAPER_EPS, decide, margin


def judge(scores: Scores, labels: Ints, *, eps: float, trusted: Bools) -> Verdicts:
    """Apply the closed-form threshold once, to the averaged probabilities. Trusted rows are clean by decree."""
    probs = torch.from_numpy(scores.probs)  # (N, K) float64
    given = torch.from_numpy(labels)
    believed = torch.from_numpy(trusted)
    decision = decide(probs, given, prior=torch.from_numpy(scores.prior), beta=scores.beta, eps=eps)
    label_probs = probs.gather(1, given[:, None]).squeeze(1)
    # The margin decides, but the given label's probability ranks: the margin grows for undecided predictions.
    order = np.lexsort((np.arange(len(labels)), -decision.margin.numpy(), label_probs.numpy()))
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(1, len(labels) + 1)
    corrupted = decision.corrupted & ~believed
    gaps = decision.margin.abs()
    return Verdicts(
        loss=decision.loss.numpy(),
        regularizer=decision.regularizer.numpy(),
        regularized_loss=decision.regularized_loss.numpy(),
        threshold=decision.threshold.numpy(),
        margin=decision.margin.numpy(),
        corrupted=corrupted.numpy(),
        paper_corrupted=((margin(probs, given, PAPER_EPS) >= 0) & ~believed).numpy(),
        rank=rank,
        label_probability=label_probs.numpy(),
        corruption_probability=corruption_probability(label_probs, corrupted, torch.from_numpy(order)).numpy(),
        undecided=int((gaps <= 1e-9 * gaps.max()).sum()),
    )
