"""The end of the warm-up and the use of mirrored images, both chosen from a small held-out part of the rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from noisesieve.learn.recipes import NetworkRecipe
from noisesieve.learn.score import Scorer
from noisesieve.learn.state import TrainingState

HELD_OUT_SHARE = 0.1
HELD_OUT_MOST = 1000
HELD_OUT_LEAST = 50  # with fewer rows none are held out, and the warm-up has its full length
RARE = 10  # no row is held out from classes of fewer examples
SHORTEST = 6  # evaluations before the warm-up may end
PATIENCE = 4  # evaluations without a gain after which it ends
GAIN = 0.005
FLIP_TRIAL = 4  # number of the evaluation at which mirrored images are tested


def held_out_rows(labels: Tensor, *, seed: int) -> Tensor:
    """Return the rows (sorted) that the warm-up does not train on, stratified by class; empty if there are too few."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.bincount(labels)
    share = min(HELD_OUT_SHARE, HELD_OUT_MOST / len(labels))
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    starts = counts.cumsum(0) - counts
    position = torch.arange(len(labels)) - starts.repeat_interleave(counts)
    quota = torch.where(counts >= RARE, (counts * share).round().long(), torch.zeros_like(counts))
    rows = by_class[position < quota.repeat_interleave(counts)].sort().values
    return rows if len(rows) >= HELD_OUT_LEAST else rows[:0]


def has_levelled_off(agreement: list[float]) -> bool:
    """Return True if the held-out agreement, smoothed over three values, has not risen for `PATIENCE` values."""
    if len(agreement) < SHORTEST:
        return False
    smooth = [
        sum(agreement[max(0, i - 2) : i + 1]) / len(agreement[max(0, i - 2) : i + 1]) for i in range(len(agreement))
    ]
    best, since = -math.inf, 0
    for value in smooth:
        best, since = (value, 0) if value > best + GAIN else (best, since + 1)
    return since >= PATIENCE


def beats_chance(probs: Tensor, labels: Tensor) -> bool:
    """Return True if the accuracy on the given labels is significantly above chance."""
    chance, rows = 1 / probs.shape[1], len(labels)
    agreed = float((probs.argmax(1) == labels).double().mean())
    return agreed > chance + 3 * math.sqrt(chance * (1 - chance) / rows)


def flipping_is_harmless(right: Tensor, right_mirrored: Tensor) -> bool:
    """Return False if the accuracy of a model trained without flips is significantly lower on mirrored images.

    `right` (N,) is where the model predicts the label of the plain image, `right_mirrored` of the mirrored one.
    Mirrored photos of objects are valid photos; mirrored letters, digits and road signs are not.
    This is a one-sided sign test over the rows on which the two views differ.
    """
    lost = int((right & ~right_mirrored).sum())
    won = int((right_mirrored & ~right).sum())
    return lost - won <= 1.64 * math.sqrt(lost + won)


def update_warmup(
    state: TrainingState, recipe: NetworkRecipe, scorer: Scorer, held_out: Tensor, labels: Tensor
) -> None:
    """After an epoch of warm-up: decide from the held-out rows whether it ends, and whether to use flips."""
    last = state.epoch == recipe.warmup_epochs
    if state.warmup is not None and state.flip is not None:
        return
    if state.epoch % recipe.watch_every and not last:
        return
    plain = scorer.score(state, held_out, mirrored=False)
    state.agreement = [*state.agreement, float(plain.gather(1, labels[:, None]).mean())]
    state.held_out_accuracy = float((plain.argmax(dim=1) == labels).double().mean())
    if state.flip is None and len(state.agreement) >= FLIP_TRIAL and beats_chance(plain, labels):
        mirrored = scorer.score(state, held_out, mirrored=True)
        state.flip = flipping_is_harmless(plain.argmax(1) == labels, mirrored.argmax(1) == labels)
    if state.warmup is None and (last or has_levelled_off(state.agreement)):
        state.warmup = state.epoch
        state.flip = bool(state.flip)  # not tested: no flips
