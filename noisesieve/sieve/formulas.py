"""The three formulas of CORES² and the verdict they give. Pure tensor code, any float dtype.

l(j)  = -ln(f[j] + eps)                     the floored log-loss of class j
CR    = -beta * sum_j prior[j] * l(j)       the confidence regularizer
alpha = mean_j l(j) + CR                    the threshold
clean  iff  l(y) + CR < alpha               strictly; CR cancels, so beta and the prior never decide
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PAPER_EPS = 1e-8
POOL_FLOOR = 1e-12  # a probability of zero must not silence the other opinion


def floored_log_loss(log_probs: Tensor, eps: float) -> Tensor:
    """-ln(f + eps) from ln f, elementwise. Bounded by -ln eps, so CR cannot run away."""
    floor = torch.full_like(log_probs, math.log(eps))
    return -torch.logaddexp(log_probs, floor)


def regularizer(losses: Tensor, prior: Tensor, beta: float) -> Tensor:
    """CR of each row, (N,), from floored losses (N, K) and the prior (K,)."""
    return -beta * (losses @ prior)


def margin(probs: Tensor, labels: Tensor, eps: float) -> Tensor:
    """l(y) - mean_j l(j), (N,): zero or above is corrupted.

    Written with log1p(f / eps), where ln eps has already cancelled: stable for every eps, from 1e-12 to 1e6.
    """
    gains = torch.log1p(probs / eps)  # (N, K)
    return gains.mean(dim=1) - gains.gather(1, labels[:, None]).squeeze(1)


def undecided(margins: Tensor) -> int:
    """How many rows lie on the threshold within rounding."""
    gaps = margins.abs()
    if len(gaps) == 0:
        return 0
    return int((gaps <= 1e-9 * gaps.max()).sum())


def pool(probs: Tensor, opinion: Tensor, weight: float) -> Tensor:
    """Two opinions (N, K) as one: their weighted geometric mean, normalised. A class that either doubts is doubted."""
    logs = (1 - weight) * (probs + POOL_FLOOR).log() + weight * (opinion + POOL_FLOOR).log()
    return logs.softmax(dim=1)


def alternative(probs: Tensor, labels: Tensor) -> Tensor:
    """The most probable class beside the given one, (N,)."""
    return probs.scatter(1, labels[:, None], -1.0).argmax(dim=1)


@dataclass(frozen=True)
class Decision:
    """The terms of the verdict, one entry a row, all with the same eps."""

    loss: Tensor  # (N,) l(y)
    regularizer: Tensor  # (N,) CR
    regularized_loss: Tensor  # (N,) l(y) + CR
    threshold: Tensor  # (N,) alpha
    margin: Tensor  # (N,) regularized_loss - threshold
    corrupted: Tensor  # (N,) bool


def decide(probs: Tensor, labels: Tensor, *, prior: Tensor, beta: float, eps: float) -> Decision:
    """Apply the closed-form threshold to probabilities (N, K) and given labels (N,)."""
    losses = floored_log_loss(probs.log(), eps)  # (N, K); ln 0 = -inf is floored
    loss = losses.gather(1, labels[:, None]).squeeze(1)
    cr = regularizer(losses, prior.to(losses), beta)
    gap = margin(probs, labels, eps)
    return Decision(
        loss=loss,
        regularizer=cr,
        regularized_loss=loss + cr,
        threshold=losses.mean(dim=1) + cr,
        margin=gap,
        corrupted=gap >= 0,
    )
