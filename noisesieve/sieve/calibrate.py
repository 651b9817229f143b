"""How sure the sieve is: a probability that a label is wrong, estimated without any truth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from noisesieve.sieve.formulas import PAPER_EPS

CALM, TORN = 0.1, 0.2  # doubt below which nothing changes, and above which the sieve is as gentle as the paper's
FEWEST = 20  # rows of either kind below which a mixture means nothing
ROUNDS = 100
MISTAKEN_AT = 0.245  # doubt at which the fitted law would call every suspect a mistake
MOST_MISTAKEN = 0.5  # about what was measured at the largest doubt: beyond it the law is not followed
REACH = 16.0  # log-odds beyond this are one place


def corruption_probability(label_probs: Tensor, corrupted: Tensor, order: Tensor, *, doubted: float = 0.0) -> Tensor:
    """P(label wrong), (N,) in [0, 1], never rising along `order` (most suspicious row first).

    A two-component Gaussian mixture on the log-odds of the given label, begun at the verdict's split. With too
    few rows of a kind it is 1 - f[y], the model's own word. `doubted` is the share of suspects whose picture two
    opinions take for different things: a network that cannot say what they show cannot be sure what they do not.
    """
    curve = fit_curve(label_probs, corrupted, doubted=doubted)
    return _monotone(1 - label_probs if curve is None else on_curve(curve, label_probs), order)


@dataclass(frozen=True)
class Curve:
    """P(label wrong) as a logistic curve over the log-odds of the given label, up to a ceiling."""

    slope: float
    middle: float
    shift: float
    ceiling: float


def fit_curve(label_probs: Tensor, corrupted: Tensor, *, doubted: float = 0.0) -> Curve | None:
    """The curve of these rows, or None where there are too few of a kind."""
    if min(int(corrupted.sum()), int((~corrupted).sum())) < FEWEST:
        return None
    return Curve(*_mixture(_odds(label_probs), corrupted), trust(doubted))


def on_curve(curve: Curve, label_probs: Tensor) -> Tensor:
    """P(label wrong) of rows, (N,)."""
    risen = torch.sigmoid(curve.slope * (_odds(label_probs) - curve.middle) + curve.shift)
    return risen.clamp(1e-6, 1 - 1e-6) * curve.ceiling


def _odds(label_probs: Tensor) -> Tensor:
    return torch.logit(label_probs.clamp(1e-12, 1 - 1e-12)).clamp(-REACH, REACH)


def doubt(torn: Tensor, suspects: Tensor) -> float:
    """The share of suspects over which two opinions are torn; none where there are no suspects."""
    return float(torn[suspects].double().mean()) if suspects.any() else 0.0


def gentle_eps(doubted: float, eps: float) -> float:
    """The log floor of the sieve in the loop: `eps` where two opinions of its first suspects agree, the paper's 1e-8
    where they often differ, between them in between.

    A dropped row is no longer learnt. Where the network cannot say what its suspects show, many of them are right but
    hard, and dropping them locks the mistake in; where it can, a small floor overlooks consistent second choices.
    """
    share = min(1.0, max(0.0, (doubted - CALM) / (TORN - CALM)))
    return float(math.exp((1 - share) * math.log(eps) + share * math.log(PAPER_EPS)))


def trust(doubted: float) -> float:
    """The share of suspects that will prove wrong, from how often two opinions of them differ.

    Opinions of one network share most of their mistakes: they differ far less often than they err, and the law is
    an empirical one, from six sets of ten classes: a doubt of .01 to .08 went with a precision of .98 to 1.00, .16 and
    .18 with .60 and .45. With two classes there is but one alternative, and no doubt to measure.
    """
    return 1 - min(MOST_MISTAKEN, (doubted / MISTAKEN_AT) ** 3)


def _mixture(odds: Tensor, corrupted: Tensor) -> tuple[float, float, float]:
    """Slope, middle and shift of the lower component's share at each row, by expectation-maximisation.

    Both components have one spread, so that the posterior is a logistic curve: monotone, without odd tails.
    """
    member = corrupted.double() * 0.98 + 0.01
    for _ in range(ROUNDS):
        masses = (member.sum(), (1 - member).sum())
        means = ((member * odds).sum() / masses[0], ((1 - member) * odds).sum() / masses[1])
        squares = member * (odds - means[0]).square() + (1 - member) * (odds - means[1]).square()
        variance = squares.mean().clamp(min=1.0)
        middle = (means[0] + means[1]) / 2
        slope = (means[0] - means[1]) / variance
        shift = torch.log(masses[0] / masses[1])
        updated = torch.sigmoid(slope * (odds - middle) + shift)
        settled = float((updated - member).abs().max()) < 1e-6
        member = updated.clamp(1e-6, 1 - 1e-6)
        if settled:
            break
    return float(slope), float(middle), float(shift)


def _monotone(values: Tensor, order: Tensor) -> Tensor:
    """The nearest-in-spirit sequence that never rises along `order`: midway between its two envelopes."""
    along = values[order]
    below = along.cummin(0).values
    above = along.flip(0).cummax(0).values.flip(0)
    result = torch.empty_like(values)
    result[order] = (below + above) / 2
    return result.clamp(0.0, 1.0)
