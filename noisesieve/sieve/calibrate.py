"""Calibration: the probability that a label is wrong, estimated without known right labels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from noisesieve.core.records import NoiseModel
from noisesieve.sieve.formulas import LOG_FLOOR, PAPER_EPS

AGREE_BELOW, DISAGREE_ABOVE = 0.1, 0.2  # disagreement up to which loop_eps is kept, and from which it is the paper's
FEWEST = 20  # with fewer suspects or fewer clean rows no mixture is fitted
ROUNDS = 100
MISTAKEN_AT = 0.245  # disagreement at which the fitted curve would expect no suspect to be wrong
MOST_MISTAKEN = 0.5  # largest expected share of mistakes; the curve was not measured beyond
FALSE_ALARMS = 0.9  # share of right labels that are flagged, by the square of the network's own error
FALL = 0.75  # exponent of the decrease of P(wrong) along the ranking of suspects
KNOTS = 16  # of the calibration curve, on either side of the verdict
LARGEST_LOGIT = 16.0  # log-odds are clamped to this absolute value
TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # higher ones would explain wrong labels by uncertain predictions
FIT_VALUES = 2_000_000  # number of probabilities that a transition is fitted to, at most
FIT_ROUNDS = 20
MANY_CLASSES = 500  # with more classes, one rate of right labels is fitted for all
BLOCK = 4096


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


def temperatures(classes: int, beta: float) -> tuple[float, ...]:
    """Return the temperatures that are tried.

    Heads that were trained with cross-entropy on noisy labels are never surer than they should be: their probabilities
    are only sharpened. CR makes heads surer, most of all where there is one other class.
    """
    if beta == 0:
        return tuple(value for value in TEMPERATURES if value <= 1)
    return (*TEMPERATURES, 5.6) if classes == 2 else TEMPERATURES


def fit_noise_model(probs: Tensor, labels: Tensor, *, beta: float) -> NoiseModel:
    """Return temperature and transition, P(given | true), under which the given labels are most likely.

    This needs out-of-fold probabilities, and no known right labels. `beta` is that of the training.
    """
    part = slice(None, None, -(-probs.numel() // FIT_VALUES))
    sample, sample_labels = probs[part], labels[part]
    best_likelihood, best, transition = -math.inf, 1.0, _uniform_transition(0.8, probs.shape[1])
    for temperature in temperatures(probs.shape[1], beta):
        likelihood, fitted = _fit_transition(sample, sample_labels, temperature)
        if likelihood > best_likelihood:
            best_likelihood, best, transition = likelihood, temperature, fitted
    return NoiseModel(best, transition.numpy())


def by_transition(probs: Tensor, labels: Tensor, order: Tensor, model: NoiseModel) -> Tensor:
    """Return P(label wrong), (N,), for out-of-fold probabilities, by Bayes' rule. It never rises along `order`."""
    wrong, transition = [], torch.from_numpy(model.transition)
    for block, given in zip(probs.split(BLOCK), labels.split(BLOCK), strict=True):
        true = _with_temperature(block, model.temperature)  # (B, K): P(true class | image)
        right = true.gather(1, given[:, None]).squeeze(1) * transition[given, given]
        wrong.append(1 - right / (true * transition[:, given].T).sum(dim=1).clamp(min=1e-300))
    return _monotone(torch.cat(wrong), order)


def _with_temperature(probs: Tensor, temperature: float) -> Tensor:
    return ((probs + LOG_FLOOR).log() / temperature).softmax(dim=1)


def _fit_transition(probs: Tensor, labels: Tensor, temperature: float) -> tuple[float, Tensor]:
    """Return the mean log-likelihood of the labels and the transition (K, K), by expectation-maximization.

    As a prior, every class gets K further rows with the average rate of right labels, spread uniformly.
    """
    true, classes = _with_temperature(probs, temperature), probs.shape[1]
    transition = _uniform_transition(0.8, classes)
    for _ in range(FIT_ROUNDS):
        joint = true * transition[:, labels].T
        joint = joint / joint.sum(dim=1, keepdim=True).clamp(min=1e-300)
        counts = torch.zeros_like(transition).index_add_(1, labels, joint.T)
        right = min(float(counts.diagonal().sum() / len(labels)), 1 - 1 / len(labels))  # at least one wrong label
        counts = classes * _uniform_transition(right, classes) + (counts if classes <= MANY_CLASSES else 0)
        transition = counts / counts.sum(dim=1, keepdim=True)
    likelihood = (true * transition[:, labels].T).sum(dim=1).clamp(min=1e-300)
    return float(likelihood.log().mean()), transition


def _uniform_transition(right: float, classes: int) -> Tensor:
    """Return a transition that keeps a label with probability `right`, else draws any other class."""
    return torch.full((classes, classes), (1 - right) / (classes - 1), dtype=torch.float64).fill_diagonal_(right)


def fit_calibration(label_probs: Tensor, probabilities: Tensor, corrupted: Tensor) -> tuple[list[float], list[float]]:
    """Return P(label wrong) as a piecewise linear curve over ln f[y], for rows that are scored later.

    The result is the knots of the curve, from left to right: ln f[y], and P(wrong), which never rises.
    """
    logs, knots = label_probs.clamp(min=1e-300).log(), []
    for group in (corrupted, ~corrupted):
        rows = torch.nonzero(group).flatten()
        for part in rows[logs[rows].argsort()].tensor_split(KNOTS):
            if len(part):
                knots.append((float(logs[part].mean()), float(probabilities[part].mean())))
    knots.sort()
    positions, values = zip(*knots, strict=True)
    never_rising = torch.tensor(values).cummin(0).values
    return list(positions), never_rising.tolist()


def apply_calibration(knots: tuple[list[float], list[float]], label_probs: Tensor) -> Tensor:
    """Return P(label wrong) of rows, (N,), from the curve of `fit_calibration`."""
    logs = label_probs.clamp(min=1e-300).log()
    positions, values = (torch.tensor(part, dtype=torch.float64) for part in knots)
    right = torch.searchsorted(positions, logs).clamp(1, len(positions) - 1)
    left = right - 1
    share = ((logs - positions[left]) / (positions[right] - positions[left]).clamp(min=1e-12)).clamp(0.0, 1.0)
    return values[left] + share * (values[right] - values[left])


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
