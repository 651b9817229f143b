"""The most probable true class of every row, by the noise model of out-of-fold probabilities."""

from __future__ import annotations

from torch import Tensor

from noisesieve.sieve.noise_model import fit_noise_model, probable_classes


def correct(probs: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable true class of each row, (N,), and its probability, from (N, K) and given labels."""
    return probable_classes(probs, given, fit_noise_model(probs, given))
