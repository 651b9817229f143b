"""How the saved weights alone score the rows they were trained on, and the curve of P(wrong): for the model card."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from noisesieve.core.records import Bools, Floats, Verdicts
from noisesieve.sieve.calibrate import fit_calibration, log_probability


@dataclass(frozen=True)
class ModelSummary:
    """How the saved weights alone, which are not the whole verdict, score the rows they were trained on."""

    flagged: int  # clean rows that these weights alone would flag
    of: int  # clean rows, by the verdict
    # P(label wrong) as a piecewise linear curve: the knots. Over ln f[y], or over the negative suspicion
    trust: list[float]
    corruption_probability: list[float]


def summarize_model(label_scores: Floats, corrupted: Bools, probabilities: Floats) -> ModelSummary:
    """Return how the saved weights score the rows of the training data, with a curve over ln f[y].

    `label_scores` (N, 2) are from the saved weights alone: f[y], and 1 where they flag the row. `corrupted` and
    `probabilities` (N,) are the verdict and the corruption probability.
    """
    trust = log_probability(torch.from_numpy(label_scores[:, 0].copy()))
    return _summary(label_scores, corrupted, fit_calibration(trust, *_tensors(probabilities, corrupted)))


def summarize_ranked_model(label_scores: Floats, verdicts: Verdicts) -> ModelSummary:
    """Return the same for a model whose rank orders by suspicion: the curve is over that."""
    assert verdicts.suspicion is not None
    trust = -torch.from_numpy(verdicts.suspicion)
    knots = fit_calibration(trust, *_tensors(verdicts.corruption_probability, verdicts.corrupted))
    return _summary(label_scores, verdicts.corrupted, knots)


def _tensors(probabilities: Floats, corrupted: Bools) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(probabilities), torch.from_numpy(corrupted)


def _summary(label_scores: Floats, corrupted: Bools, knots: tuple[list[float], list[float]]) -> ModelSummary:
    flagged, clean = label_scores[:, 1] > 0, ~corrupted
    return ModelSummary(int(flagged[clean].sum()), int(clean.sum()), *knots)
