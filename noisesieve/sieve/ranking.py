"""The rank of rows that were scored out of fold: what is known of a label beside the closed form.

The closed form on the probabilities of the CR heads decides. Cross-entropy heads on the same features rank better where
there is little noise, and in long tails, and worse under much noise. The rank therefore combines two things: the
probability of the given label by the geometric mean G of both kinds of heads, and the posterior of G's noise model that
the label is wrong:

    suspicion = logit P(wrong | G) + logit (1 - G[y])
"""

from __future__ import annotations

import torch
from torch import Tensor

from noisesieve.core.records import NoiseModel, RankModel
from noisesieve.sieve.formulas import geometric_mean, in_float64
from noisesieve.sieve.noise_model import FIT_VALUES, fit_noise_model, probability_of_wrong

CE_WEIGHT = 0.75  # of the cross-entropy heads in the geometric mean
SUREST = 1e-12  # probabilities are clamped to this distance from 0 and 1
BLOCK_VALUES = 2**19  # probabilities at a time


def fit_rank_model(
    probs: Tensor, ce_probs: Tensor | None, labels: Tensor, known: NoiseModel | None = None
) -> RankModel:
    """Return the noise models of the deciding probabilities, and of their mean with those of cross-entropy heads.

    `known` is the first of them, if it was fitted before. Without cross-entropy heads one serves for both.
    """
    own = known or fit_noise_model(probs, labels)
    if ce_probs is None:
        return RankModel(own, own)
    part = slice(None, None, -(-probs.numel() // FIT_VALUES))
    mean = geometric_mean(in_float64(probs[part]), in_float64(ce_probs[part]), CE_WEIGHT)
    return RankModel(own, fit_noise_model(mean, labels[part]))


def suspicion(probs: Tensor, ce_probs: Tensor | None, labels: Tensor, model: RankModel) -> Tensor:
    """Return how suspicious each label is, (N,): the larger, the more. It is no probability, only an order."""
    values, size = torch.empty(len(labels), dtype=torch.float64), max(1, BLOCK_VALUES // probs.shape[1])
    for start in range(0, len(labels), size):
        rows = slice(start, start + size)
        given, mean = labels[rows], in_float64(probs[rows])
        if ce_probs is not None:
            mean = geometric_mean(mean, in_float64(ce_probs[rows]), CE_WEIGHT)
        wrong = probability_of_wrong(mean, given, model.combined)
        values[rows] = _logit(wrong) + _logit(1 - mean.gather(1, given[:, None]).squeeze(1))
    return values


def _logit(probability: Tensor) -> Tensor:
    return torch.logit(probability.clamp(SUREST, 1 - SUREST))
