"""A second opinion for the verdict: a snapshot of the probabilities under plain cross-entropy (CE).

After the warm-up, training continues with CE for a few epochs, its probabilities are stored, and the weights are reset
to those before the snapshot. CE ranks hard images better as long as it has not memorized them. The verdict combines
snapshot and regularized network as a geometric mean. Where the two differ in the other class of many flagged rows, the
sieve in the loop uses a smaller floor, and the corruption probability is lower.
"""

from __future__ import annotations

import torch
from torch import Tensor

from noisesieve.learn.recipes import NetworkRecipe
from noisesieve.learn.score import Scorer
from noisesieve.learn.state import TrainingState
from noisesieve.sieve.calibrate import loop_eps_from_disagreement, suspect_disagreement
from noisesieve.sieve.formulas import best_other_class, geometric_mean, margin

SNAPSHOT_EPOCHS = 3  # the snapshot is the mean over this many last CE epochs
BLOCK = 65_536  # rows combined at a time


def record_snapshot(state: TrainingState, scorer: Scorer, *, last: int) -> None:
    """After an epoch of CE: add its probabilities to the snapshot, if it is one of the last three up to `last`."""
    if state.epoch > last - SNAPSHOT_EPOCHS:
        probs = scorer.score(state, torch.arange(len(state.keep)))
        state.ce_snapshot = probs if state.ce_snapshot is None else state.ce_snapshot + probs
        state.ce_snapshot_count += 1


def choose_loop_eps(state: TrainingState, probs: Tensor, labels: Tensor, recipe: NetworkRecipe) -> float:
    """Return the log floor of the sieve in the loop, from the probabilities (N, K) just before it starts."""
    if state.ce_snapshot is None:
        return recipe.loop_eps
    suspects = margin(probs, labels, recipe.loop_eps) >= 0
    disagreement = suspect_disagreement(_disagree(probs, state.ce_snapshot, labels), suspects)
    return loop_eps_from_disagreement(disagreement, recipe.loop_eps)


def combine(state: TrainingState, probs: Tensor, labels: Tensor, weight: float) -> tuple[Tensor, Tensor | None]:
    """Replace `probs` (N, K) by its geometric mean with the CE snapshot, in place.

    Also returns the rows where the two disagree, (N,), or None if there is no snapshot.
    """
    if state.ce_snapshot is None:
        return probs, None
    ce_snapshot = state.ce_snapshot / state.ce_snapshot_count
    disagree = _disagree(probs, ce_snapshot, labels)
    for mine, other in zip(probs.split(BLOCK), ce_snapshot.split(BLOCK), strict=True):
        mine.copy_(geometric_mean(mine, other, weight))  # in place, since probs may take gigabytes
    return probs, disagree


def label_scores(probs: Tensor, labels: Tensor, eps: float, *, exact: bool = False) -> Tensor:
    """Return (N, 2): the probability of the given label, and 1 where the closed form flags the row."""
    flagged = margin(probs, labels, eps, exact=exact) >= 0
    return torch.stack((probs.gather(1, labels[:, None]).squeeze(1), flagged.double()), dim=1)


def _disagree(probs: Tensor, ce_snapshot: Tensor, labels: Tensor) -> Tensor:
    """Return (N,): True where the two have different most probable classes other than the given one."""
    return best_other_class(probs, labels) != best_other_class(ce_snapshot, labels)
