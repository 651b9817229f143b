"""The three formulas of CORES² and the verdict. Pure tensor code, for any float dtype.

l(j)  = -ln(f[j] + eps)                     the floored log-loss of class j
CR    = -beta * sum_j prior[j] * l(j)       the confidence regularizer
alpha = mean_j l(j) + CR                    the threshold
clean  iff  l(y) + CR < alpha               strictly; CR cancels, so the verdict depends on neither beta nor prior

In the paper's own rule the label's own term is exact, -ln f[y], and only CR and alpha have the floor, as in the
authors' code. Theorem 2 then holds for f[y] > 1 / K + eps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PAPER_EPS = 1e-8
LOG_FLOOR = 1e-12  # added before a logarithm, so that a probability of zero does not decide a geometric mean alone


def floored_log_loss(log_probs: Tensor, eps: float) -> Tensor:
    """Return -ln(f + eps) from ln f, elementwise. It is at most -ln eps, so CR is bounded."""
    floor = torch.full_like(log_probs, math.log(eps))
    return -torch.logaddexp(log_probs, floor)


def regularizer(losses: Tensor, prior: Tensor, beta: float) -> Tensor:
    """Return CR of each row, (N,), from floored losses (N, K) and the prior (K,)."""
    return -beta * (losses @ prior)


def entropy(log_probs: Tensor) -> Tensor:
    """Return the entropy of each row, (N,), from ln f (N, K). The paper's appendix compares it with CR."""
    return -(log_probs.exp() * log_probs).sum(dim=1)


def in_float64(probs: Tensor) -> Tensor:
    """Return probabilities (B, K) that were stored in float32, normalized in float64.

    What is left to one of a probability near one is then known from the others: 1 - f has the precision of a small f.
    """
    exact = probs.double()
    total = exact.sum(dim=1, keepdim=True)
    return exact / torch.where(total > 0, total, 1.0)


def own_weight(share: float, beta: float) -> float:
    """Return 1 - beta * prior[y]: what the loss of a row's own label counts with, for a class with this prior.

    Cross-entropy counts it once, and CR takes beta * prior[y] of it away. Below zero the loss prefers any other label.
    """
    return 1 - beta * share


def largest_beta(largest_share: float) -> float:
    """Return the largest beta with which a row's own label keeps half of its weight, whatever its class."""
    return 0.5 / largest_share


def margin(probs: Tensor, labels: Tensor, eps: float, *, exact: bool = False, classes_first: bool = False) -> Tensor:
    """Return l(y) - mean_j l(j), (N,), from probabilities (N, K), or (K, N): zero or above is corrupted.

    Computed with log1p(f / eps), where ln eps cancels: stable for every eps from 1e-12 to 1e6. With `exact` the label's
    own term has no floor.
    """
    gains, classes = torch.log1p(probs / eps), 0 if classes_first else 1
    if exact:
        own = -exact_log_loss(probs, labels, classes_first=classes_first)
        return gains.mean(dim=classes) + math.log(eps) - own
    return gains.mean(dim=classes) - gains.gather(classes, labels.unsqueeze(classes)).squeeze(classes)


def exact_log_loss(probs: Tensor, labels: Tensor, *, classes_first: bool = False) -> Tensor:
    """Return -ln f[y], (N,), finite also where the probability is zero."""
    classes = 0 if classes_first else 1
    own = probs.gather(classes, labels.unsqueeze(classes)).squeeze(classes)
    return -own.clamp(min=torch.finfo(probs.dtype).tiny).log()


def undecided(margins: Tensor) -> int:
    """Return how many rows have a margin of zero within rounding."""
    gaps = margins.abs()
    if len(gaps) == 0:
        return 0
    return int((gaps <= 1e-9 * gaps.max()).sum())


def geometric_mean(probs: Tensor, other: Tensor, weight: float) -> Tensor:
    """Return the weighted geometric mean of two sets of probabilities (N, K), normalized; `weight` is the second's."""
    logs = (1 - weight) * (probs + LOG_FLOOR).log() + weight * (other + LOG_FLOOR).log()
    return logs.softmax(dim=1)


def best_other_class(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the most probable class other than the given one, (N,)."""
    return probs.scatter(1, labels[:, None], -1.0).argmax(dim=1)


@dataclass(frozen=True)
class ThresholdTerms:
    """The terms of the verdict, one entry per row."""

    loss: Tensor  # (N,) l(y)
    regularizer: Tensor  # (N,) CR
    regularized_loss: Tensor  # (N,) l(y) + CR
    threshold: Tensor  # (N,) alpha
    margin: Tensor  # (N,) regularized_loss - threshold
    corrupted: Tensor  # (N,) bool


def apply_threshold(
    probs: Tensor, labels: Tensor, *, prior: Tensor, beta: float, eps: float, exact: bool = False
) -> ThresholdTerms:
    """Apply the closed-form threshold to probabilities (N, K) and given labels (N,).

    With `exact` the label's own term has no floor, as in the paper's own rule.
    """
    losses = floored_log_loss(probs.log(), eps)  # (N, K); ln 0 = -inf is floored
    loss = exact_log_loss(probs, labels) if exact else losses.gather(1, labels[:, None]).squeeze(1)
    cr = regularizer(losses, prior.to(losses), beta)
    gap = margin(probs, labels, eps, exact=exact)
    return ThresholdTerms(
        loss=loss,
        regularizer=cr,
        regularized_loss=loss + cr,
        threshold=losses.mean(dim=1) + cr,
        margin=gap,
        corrupted=gap >= 0,
    )
