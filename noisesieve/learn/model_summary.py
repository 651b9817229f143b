"""How the saved weights alone score the rows they were trained on: for the model card."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from noisesieve.core.records import Bools, Floats
from noisesieve.sieve.calibrate import fit_calibration


@dataclass(frozen=True)
class ModelSummary:
    """How the saved weights alone, which are not the whole verdict, score the rows they were trained on."""

    flagged: int  # clean rows that these weights alone would flag
    of: int  # clean rows, by the verdict
    # P(label wrong) as a piecewise linear curve over ln f[y]: the knots
    log_probability: list[float]
    corruption_probability: list[float]


def summarize_model(label_scores: Floats, corrupted: Bools, probabilities: Floats) -> ModelSummary:
    """Return how the saved weights score the rows of the training data, for the model card.

    `label_scores` (N, 2) are from the saved weights alone: f[y], and 1 where they flag the row. `corrupted` and
    `probabilities` (N,) are the verdict and the corruption probability.
    """
    flagged, clean = label_scores[:, 1] > 0, ~corrupted
    given = torch.from_numpy(label_scores[:, 0].copy())
    knots = fit_calibration(given, torch.from_numpy(probabilities), torch.from_numpy(corrupted))
    return ModelSummary(int(flagged[clean].sum()), int(clean.sum()), *knots)
