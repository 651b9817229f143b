"""Recalibration: people's decisions correct the probabilities of a run.

logit P' = shift + slope * logit P. With no decision nothing changes: shift and slope have a prior, whose spread was
found on sets with known labels (noisesieve/bench/README.md). P' never rises along the ranking, since P does not.
"""

from __future__ import annotations

import numpy as np

from noisesieve.core.records import Bools, Floats, Recalibration

SHIFT_SPREAD, SLOPE_SPREAD = 1.5, 0.4  # standard deviations of the shift, and of the logarithm of the slope
SHIFTS = np.linspace(-5.0, 5.0, 201)
SLOPES = np.exp(np.linspace(-1.2, 1.2, 49))
SUREST = 1e-4  # probabilities are clamped to this distance from 0 and 1
BLOCK = 500  # decisions at a time


def apply_shift(probability: Floats, recalibration: Recalibration) -> Floats:
    """Return the corrected probabilities; 0 stays 0."""
    return _from_logit(recalibration.shift + recalibration.slope * _logit(probability), probability)


def undo_shift(probability: Floats, recalibration: Recalibration) -> Floats:
    """Return the probabilities as they were before."""
    return _from_logit((_logit(probability) - recalibration.shift) / recalibration.slope, probability)


def recalibrate(probability: Floats, wrong: Bools) -> Recalibration:
    """Fit shift and slope to decided rows: their probabilities before, and whether their label was wrong."""
    shifts, slopes = SHIFTS[:, None, None], SLOPES[None, :, None]
    score = -np.square(SHIFTS / SHIFT_SPREAD)[:, None] / 2 - np.square(np.log(SLOPES) / SLOPE_SPREAD)[None] / 2
    for start in range(0, len(wrong), BLOCK):
        signed = np.where(wrong[start : start + BLOCK], 1.0, -1.0)
        logits = shifts + slopes * _logit(probability[start : start + BLOCK])
        score = score + np.log(_sigmoid(signed * logits)).sum(axis=2)
    shift, slope = np.unravel_index(int(score.argmax()), score.shape)
    return Recalibration(float(SHIFTS[shift]), float(SLOPES[slope]), len(wrong))


def _logit(probability: Floats) -> Floats:
    clipped = np.clip(probability, SUREST, 1 - SUREST)
    logits: Floats = np.log(clipped / (1 - clipped))
    return logits


def _sigmoid(logits: Floats) -> Floats:
    probability: Floats = 1 / (1 + np.exp(-logits))
    return probability


def _from_logit(logits: Floats, probability: Floats) -> Floats:
    return np.where(probability > 0, _sigmoid(logits), 0.0)
