"""Calibration: the probability that a label is wrong, estimated without known right labels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from noisesieve.sieve.formulas import PAPER_EPS

AGREE_BELOW, DISAGREE_ABOVE = 0.1, 0.2  # disagreement up to which loop_eps is kept, and from which it is the paper's
FEWEST = 20  # with fewer suspects or fewer clean rows no mixture is fitted
ROUNDS = 100
MISTAKEN_AT = 0.245  # disagreement at which the fitted curve would expect no suspect to be wrong
MOST_MISTAKEN = 0.5  # largest expected share of mistakes; the curve was not measured beyond
FALSE_ALARMS = 0.9  # share of right labels that are flagged, by the square of the network's own error
FALL = 0.75  # exponent of the decrease of P(wrong) along the ranking of suspects
KNOTS = 16  # of the calibration curve, on either side of the verdict
LARGEST_LOGIT = 16.0  # log-odds are clamped to this absolute value


def corruption_probability(label_probs: Tensor, corrupted: Tensor, order: Tensor, *, precision: float) -> Tensor:
    """Return P(label wrong), (N,) in [0, 1], which never rises along `order` (most suspicious row first).

    For clean rows it is the posterior of a two-component Gaussian mixture on the log-odds of the given label, started
    from the verdict. For suspects it is a decreasing curve along their ranking whose mean is the expected `precision`.
    With too few suspects or too few clean rows it is 1 - f[y].
    """
    suspects = int(corrupted.sum())
    if min(suspects, len(corrupted) - suspects) < FEWEST:
        return _monotone(1 - label_probs, order)
    log_odds = torch.logit(label_probs.clamp(1e-12, 1 - 1e-12)).clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
    position = torch.empty_like(label_probs)  # of a suspect in the ranking: 0 for the first, 1 for the last
    position[order] = (torch.arange(len(order)).to(position) + 0.5) / suspects
    falling = _falling(precision, position.clamp(max=1.0) ** FALL)
    return _monotone(torch.where(corrupted, falling, _posterior(log_odds, corrupted) * precision), order)


def _falling(precision: float, steps: Tensor) -> Tensor:
    """Return a curve that falls along `steps`, from at most 1, with this mean."""
    share = FALL / (1 + FALL)  # mean of 1 - steps
    if precision < share:
        return precision / share * (1 - steps)
    return 1 - (1 + FALL) * (1 - precision) * steps


def never_rising(values: Tensor, order: Tensor) -> Tensor:
    """Return values that never rise along `order`, as near to `values` as possible; their sum stays the same."""
    from scipy.optimize import isotonic_regression

    result = torch.empty_like(values)
    result[order] = torch.from_numpy(isotonic_regression(values[order].numpy(), increasing=False).x.copy())
    return result.clamp(0.0, 1.0)


def fit_calibration(trust: Tensor, probabilities: Tensor, corrupted: Tensor) -> tuple[list[float], list[float]]:
    """Return P(label wrong) as a piecewise linear curve, for rows that are scored later.

    `trust` (N,) is what the rank orders by, the most suspicious row first: ln f[y], or the negative suspicion. The
    result is the knots of the curve, from left to right: the values of `trust`, and P(wrong), which never rises.
    """
    knots = []
    for group in (corrupted, ~corrupted):
        rows = torch.nonzero(group).flatten()
        for part in rows[trust[rows].argsort()].tensor_split(KNOTS):
            if len(part):
                knots.append((float(trust[part].mean()), float(probabilities[part].mean())))
    knots.sort()
    positions, values = zip(*knots, strict=True)
    return list(positions), torch.tensor(values).cummin(0).values.tolist()


def apply_calibration(knots: tuple[list[float], list[float]], trust: Tensor) -> Tensor:
    """Return P(label wrong) of rows, (N,), from the curve of `fit_calibration`."""
    positions, values = (torch.tensor(part, dtype=torch.float64) for part in knots)
    right = torch.searchsorted(positions, trust).clamp(1, len(positions) - 1)
    left = right - 1
    share = ((trust - positions[left]) / (positions[right] - positions[left]).clamp(min=1e-12)).clamp(0.0, 1.0)
    return values[left] + share * (values[right] - values[left])


def log_probability(label_probs: Tensor) -> Tensor:
    """Return ln f[y], finite for a probability of zero."""
    return label_probs.clamp(min=1e-300).log()


def suspect_disagreement(disagree: Tensor, suspects: Tensor) -> float:
    """Return the share of suspects on which the CE snapshot and the network disagree; 0 without suspects."""
    return float(disagree[suspects].double().mean()) if suspects.any() else 0.0


def loop_eps_from_disagreement(disagreement: float, eps: float) -> float:
    """Return the floor of the sieve in the loop: from `eps` at low disagreement to the paper's 1e-8 at high.

    A dropped row is not trained on until its margin is negative again. Where snapshot and network disagree on many
    flagged rows, many of these are right but hard, and may stay dropped. Where they agree, a small floor would miss
    consistent second-choice labels.
    """
    share = min(1.0, max(0.0, (disagreement - AGREE_BELOW) / (DISAGREE_ABOVE - AGREE_BELOW)))
    return float(math.exp((1 - share) * math.log(eps) + share * math.log(PAPER_EPS)))


def precision_from_agreement(agreement: float, flagged: float) -> float:
    """Return the expected share of suspects that are wrong, from the network's agreement with labels it had not seen.

    Wrong labels explain a disagreement of about the flagged share. The rest, `excess`, is the network's own error, and
    the more it errs, the more right labels it flags: about FALSE_ALARMS * excess^2 of them, on nine sets (six of
    sign_digits and digits with an excess of 0 to .11, and two of CIFAR with .32).
    """
    excess = max(0.0, 1 - agreement - flagged)
    return max(0.0, 1 - FALSE_ALARMS * excess**2 * (1 - flagged) / flagged) if flagged else 1.0


def expected_precision(disagreement: float) -> float:
    """Return the expected share of suspects that are wrong, from the disagreement of snapshot and network.

    The curve is empirical, from six sets of ten classes: a disagreement of .01 to .08 came with a precision of .98 to
    1.00, .16 and .18 with .60 and .45. (Both come from one network and share most mistakes, so they disagree much less
    often than they err.) With two classes there is only one other class, and the disagreement is always 0.
    """
    return 1 - min(MOST_MISTAKEN, (disagreement / MISTAKEN_AT) ** 3)


def _posterior(log_odds: Tensor, corrupted: Tensor) -> Tensor:
    """Return the posterior of the lower mixture component at each row, by expectation-maximization.

    Both components have the same variance, so that the posterior is a logistic curve, which is monotone.
    """
    member = corrupted.double() * 0.98 + 0.01
    for _ in range(ROUNDS):
        masses = (member.sum(), (1 - member).sum())
        means = ((member * log_odds).sum() / masses[0], ((1 - member) * log_odds).sum() / masses[1])
        squares = member * (log_odds - means[0]).square() + (1 - member) * (log_odds - means[1]).square()
        variance = squares.mean().clamp(min=1.0)
        middle = (means[0] + means[1]) / 2
        slope = (means[0] - means[1]) / variance
        updated = torch.sigmoid(slope * (log_odds - middle) + torch.log(masses[0] / masses[1]))
        converged = float((updated - member).abs().max()) < 1e-6
        member = updated.clamp(1e-6, 1 - 1e-6)
        if converged:
            break
    return member


def _monotone(values: Tensor, order: Tensor) -> Tensor:
    """Return values that never rise along `order`: the mean of the lower and the upper monotone envelope."""
    along = values[order]
    below = along.cummin(0).values
    above = along.flip(0).cummax(0).values.flip(0)
    result = torch.empty_like(values)
    result[order] = (below + above) / 2
    return result.clamp(0.0, 1.0)
