"""The noise model: how given labels come about, fitted to out-of-fold probabilities. No known right label is needed.

The true class of a row is distributed as f with a temperature, and the given label follows from it by a transition,
P(given | true). How far the transition may leave a uniform one is a matter of how many labels there are to say so:
temperature and strength of its prior are those under which the labels of the half that the fit has not used are most
likely.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from noisesieve.core.records import NoiseModel
from noisesieve.sieve.formulas import LOG_FLOOR, in_float64

TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # higher ones would explain wrong labels by uncertain predictions
OF_TWO_CLASSES = (*TEMPERATURES, 5.6)  # CR makes heads surest where there is one other class
STRENGTHS = (1.0, 10.0, 100.0, 10_000.0)  # of the prior: rows of each class, times the number of classes
WORTH = 1.0  # by how much the log-likelihood must rise for a higher temperature: as much as one parameter costs
ROUNDS = 20  # of expectation-maximization
FIT_VALUES = 2_000_000  # number of probabilities that the model is fitted to, at most
CHOICE_VALUES = 200_000  # number of probabilities that temperature and strength are chosen from, at most
MANY_CLASSES = 500  # with more classes, one rate of right labels is fitted for all
FIRST_RATE = 0.8  # of right labels, where the fit starts
BLOCK, BLOCK_VALUES = 4096, 2**19  # rows, and probabilities, at a time


def fit_noise_model(probs: Tensor, labels: Tensor) -> NoiseModel:
    """Return the noise model of out-of-fold probabilities (N, K) and given labels (N,)."""
    temperature, strength = _choose_priors(*_thin(probs, labels, CHOICE_VALUES))
    sample, given = _thin(probs, labels, FIT_VALUES)
    transition = _fit_transition(with_temperature(sample, temperature), given, strength)
    return NoiseModel(temperature, strength, transition.numpy())


def _choose_priors(probs: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return temperature and strength by the likelihood of each half's labels under the fit to the other half.

    It is the lowest temperature that is about as likely as the best: with few rows a higher one costs nothing, and
    would explain wrong labels by uncertain predictions.
    """
    half = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)) % 2 == 0
    likelihood: dict[tuple[float, float], float] = {}
    for temperature in OF_TWO_CLASSES if probs.shape[1] == 2 else TEMPERATURES:
        true = with_temperature(probs, temperature)
        for strength in STRENGTHS:
            likelihood[temperature, strength] = sum(
                _log_likelihood(true[~part], labels[~part], _fit_transition(true[part], labels[part], strength))
                for part in (half, ~half)
            )
    enough = max(likelihood.values()) - WORTH
    lowest = min(temperature for (temperature, _), value in likelihood.items() if value >= enough)
    return max((pair for pair in likelihood if pair[0] == lowest), key=lambda pair: likelihood[pair])


def probability_of_wrong(probs: Tensor, labels: Tensor, model: NoiseModel) -> Tensor:
    """Return P(label wrong), (N,), for out-of-fold probabilities (N, K), by Bayes' rule."""
    wrong = torch.empty(len(labels), dtype=torch.float64)  # asked for once: many small pieces would keep the blocks'
    for rows, true in _posteriors(probs, labels, model):  # memory from being used again
        wrong[rows] = 1 - true.gather(1, labels[rows, None]).squeeze(1)
    return wrong


def probable_classes(probs: Tensor, labels: Tensor, model: NoiseModel) -> tuple[Tensor, Tensor]:
    """Return the most probable true class of each row, (N,), and its probability, by image and given label."""
    classes, sure = torch.empty_like(labels), torch.empty(len(labels), dtype=torch.float64)
    for rows, true in _posteriors(probs, labels, model):
        sure[rows], classes[rows] = true.max(dim=1)
    return classes, sure


def _posteriors(probs: Tensor, labels: Tensor, model: NoiseModel) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of rows with P(true class | image, given label), (B, K)."""
    transition = torch.from_numpy(model.transition).T.contiguous()
    size = max(1, min(BLOCK, BLOCK_VALUES // probs.shape[1]))
    for start in range(0, len(labels), size):
        rows = slice(start, start + size)
        joint = with_temperature(probs[rows], model.temperature).mul_(transition[labels[rows]])
        yield rows, joint.div_(joint.sum(dim=1, keepdim=True).clamp(min=1e-300)).clamp_(0.0, 1.0)


def with_temperature(probs: Tensor, temperature: float) -> Tensor:
    """Return f to the power of 1 / temperature, normalized, in float64."""
    exact = in_float64(probs) if probs.dtype == torch.float32 else probs
    return ((exact + LOG_FLOOR).log() / temperature).softmax(dim=1)


def _thin(probs: Tensor, labels: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return evenly spaced rows, so that there are at most about `most` probabilities."""
    part = slice(None, None, -(-probs.numel() // most))
    return probs[part], labels[part]


def _fit_transition(true: Tensor, labels: Tensor, strength: float) -> Tensor:
    """Return the transition (K, K) under which the labels are most likely, by expectation-maximization.

    As a prior every class gets `strength` * K further rows with the average rate of right labels, spread uniformly; a
    class that is smaller than the average gets more, in proportion: a few rows cannot tell how their class is confused.
    """
    classes, counts = true.shape[1], torch.bincount(labels, minlength=true.shape[1]).double()
    added = strength * classes * (counts.mean() / counts.clamp(min=1)).clamp(min=1)[:, None]  # (K, 1)
    transition = _uniform_transition(FIRST_RATE, classes)
    for _ in range(ROUNDS):
        joint = true * transition.T[labels]
        joint = joint / joint.sum(dim=1, keepdim=True).clamp(min=1e-300)
        found = torch.zeros_like(transition).index_add_(0, labels, joint).T
        right = min(float(found.diagonal().sum() / len(labels)), 1 - 1 / len(labels))  # at least one wrong label
        total = added * _uniform_transition(right, classes) + (found if classes <= MANY_CLASSES else 0)
        transition = total / total.sum(dim=1, keepdim=True)
    return transition


def _log_likelihood(true: Tensor, labels: Tensor, transition: Tensor) -> float:
    return float((true * transition.T[labels]).sum(dim=1).clamp(min=1e-300).log().sum())


def _uniform_transition(right: float, classes: int) -> Tensor:
    """Return a transition that keeps a label with probability `right`, else draws any other class."""
    return torch.full((classes, classes), (1 - right) / (classes - 1), dtype=torch.float64).fill_diagonal_(right)
