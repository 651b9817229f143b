"""The second opinion: what plain cross-entropy says once it has settled, held beside the regularized network's word.

It ranks hard pictures better until it memorizes them, so its word is noted and training goes back. Where the two name
different classes for the same suspect, neither the sieve nor the verdict should be sure.
"""

from __future__ import annotations

import torch
from torch import Tensor

from noisesieve.learn.score import Scorer
from noisesieve.learn.state import State
from noisesieve.settings import Recipe
from noisesieve.sieve.calibrate import doubt, gentle_eps
from noisesieve.sieve.formulas import alternative, margin, pool

EPOCHS = 3  # the last of the settling: their mean is the opinion
BLOCK = 65_536  # rows pooled at a time


def note(state: State, scorer: Scorer, *, last: int) -> None:
    """After an epoch of settling: add its word, if it is one of those that count up to the `last`."""
    if state.epoch > last - EPOCHS:
        said = scorer.score(state, torch.arange(len(state.keep)))
        state.opinion = said if state.opinion is None else state.opinion + said
        state.opinion_count += 1


def choose_eps(state: State, probs: Tensor, labels: Tensor, recipe: Recipe) -> float:
    """The log floor of the sieve in the loop, from the scores (N, K) just before it starts."""
    if state.opinion is None:
        return recipe.loop_eps
    suspects = margin(probs, labels, recipe.loop_eps) >= 0
    return gentle_eps(doubt(_torn(probs, state.opinion, labels), suspects), recipe.loop_eps)


def combine(state: State, probs: Tensor, labels: Tensor, weight: float) -> tuple[Tensor, Tensor | None]:
    """Both opinions as one, in place of `probs` (N, K), and the rows over which they are torn; None: only one spoke."""
    if state.opinion is None:
        return probs, None
    opinion = state.opinion / state.opinion_count
    torn = _torn(probs, opinion, labels)
    for mine, other in zip(probs.split(BLOCK), opinion.split(BLOCK), strict=True):
        mine.copy_(pool(mine, other, weight))  # in place: these may be gigabytes
    return probs, torn


def alone(probs: Tensor, labels: Tensor, eps: float) -> Tensor:
    """What the weights that are kept say without any other opinion, (N, 2): f[y], and whether they flag the row."""
    flagged = margin(probs, labels, eps) >= 0
    return torch.stack((probs.gather(1, labels[:, None]).squeeze(1), flagged.double()), dim=1)


def _torn(probs: Tensor, opinion: Tensor, labels: Tensor) -> Tensor:
    """(N,): true where the two name different classes beside the given one."""
    return alternative(probs, labels) != alternative(opinion, labels)
