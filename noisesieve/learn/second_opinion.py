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
BLOCK = 16_384  # rows at a time


def records_snapshot(state: TrainingState, *, last: int) -> bool:
    """Return True if the probabilities after this epoch of CE are in the snapshot: the last three up to `last`."""
    return state.epoch > last - SNAPSHOT_EPOCHS


def record_snapshot(state: TrainingState, scorer: Scorer) -> None:
    """After an epoch of CE: add its probabilities to the snapshot."""
    nothing = lambda probs, rows: torch.zeros((len(rows), 0))  # noqa: E731
    scorer.score(state, torch.arange(len(state.keep)), reduce=nothing, add_to=state.ce_snapshot, sum_name="ce_snapshot")
    state.ce_snapshot_count += 1


def choose_loop_eps(state: TrainingState, disagree: Tensor, suspects: Tensor, recipe: NetworkRecipe) -> float:
    """Return the log floor of the sieve in the loop, by the suspects (N,) just before it starts.

    `disagree` (N,): where snapshot and network have different most probable other classes.
    """
    if state.ce_snapshot is None:
        return recipe.loop_eps
    return loop_eps_from_disagreement(suspect_disagreement(disagree, suspects), recipe.loop_eps)


def combine(state: TrainingState, probs: Tensor, labels: Tensor, weight: float) -> Tensor:
    """Replace `probs` (B, K) by its geometric mean with the CE snapshot, in place: both may take gigabytes.

    Returns the rows where the two disagree, (B,).
    """
    disagree = disagreement(state, probs, labels)
    if state.ce_snapshot is not None:
        for mine, other in zip(probs.split(BLOCK), state.ce_snapshot.split(BLOCK), strict=True):
            mine.copy_(geometric_mean(mine.double(), other.double() / state.ce_snapshot_count, weight))
    return disagree


def disagreement(state: TrainingState, probs: Tensor, labels: Tensor) -> Tensor:
    """Return (B,): True where probabilities and snapshot have different most probable classes but the given one."""
    if state.ce_snapshot is None:
        return torch.zeros(len(labels), dtype=torch.bool)
    blocks = zip(probs.split(BLOCK), state.ce_snapshot.split(BLOCK), labels.split(BLOCK), strict=True)
    return torch.cat([best_other_class(mine, own) != best_other_class(other, own) for mine, other, own in blocks])


def label_scores(probs: Tensor, labels: Tensor, eps: float, *, exact: bool = False) -> Tensor:
    """Return (N, 2): the probability of the given label, and 1 where the closed form flags the row."""
    flagged = margin(probs, labels, eps, exact=exact) >= 0
    return torch.stack((probs.gather(1, labels[:, None]).squeeze(1), flagged.double()), dim=1)
