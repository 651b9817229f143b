"""The warm-up asks a small held-out part: has plain CE learnt what it will learn, and may pictures be mirrored?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from noisesieve.learn.score import Scorer
from noisesieve.learn.state import State
from noisesieve.settings import Recipe

HELD_OUT_SHARE = 0.1
HELD_OUT_MOST = 1000
HELD_OUT_LEAST = 50  # fewer cannot tell anything: the warm-up then takes its full length
RARE = 10  # classes of fewer examples give none away
SHORTEST = 6  # looks
PATIENCE = 4  # looks without a gain
GAIN = 0.005
FLIP_TRIAL = 4  # the look at which mirrored pictures are tried


def held_out_rows(labels: Tensor, *, seed: int) -> Tensor:
    """Rows (sorted) that the warm-up does not train on, by class share; empty where too few could be spared."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.bincount(labels)
    share = min(HELD_OUT_SHARE, HELD_OUT_MOST / len(labels))
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    starts = counts.cumsum(0) - counts
    place = torch.arange(len(labels)) - starts.repeat_interleave(counts)
    quota = torch.where(counts >= RARE, (counts * share).round().long(), torch.zeros_like(counts))
    rows = by_class[place < quota.repeat_interleave(counts)].sort().values
    return rows if len(rows) >= HELD_OUT_LEAST else rows[:0]


def has_levelled_off(agreement: list[float]) -> bool:
    """True when the held-out agreement, smoothed over three looks, has not gained for `PATIENCE` looks."""
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
    """True once the model agrees with clearly more labels than a guess would: before, it can answer nothing."""
    chance, rows = 1 / probs.shape[1], len(labels)
    agreed = float((probs.argmax(1) == labels).double().mean())
    return agreed > chance + 3 * math.sqrt(chance * (1 - chance) / rows)


def flipping_is_harmless(plain: Tensor, mirrored: Tensor, labels: Tensor) -> bool:
    """False where a model that never saw a mirrored picture agrees with clearly fewer of them.

    Mirrored photographs of things are photographs of things; mirrored letters, digits and road signs are not.
    A one-sided sign test over the rows on which the two views differ.
    """
    right, right_mirrored = plain.argmax(1) == labels, mirrored.argmax(1) == labels
    lost = int((right & ~right_mirrored).sum())
    won = int((right_mirrored & ~right).sum())
    return lost - won <= 1.64 * math.sqrt(lost + won)


def watch(state: State, recipe: Recipe, scorer: Scorer, held_out: Tensor, labels: Tensor) -> None:
    """After an epoch of warm-up: may beta rise? May pictures be mirrored? Ask the held-out rows."""
    last = state.epoch == recipe.warmup_epochs
    if state.warmup is not None and state.flip is not None:
        return
    if state.epoch % recipe.watch_every and not last:
        return
    plain = scorer.score(state, held_out, mirrored=False)
    state.agreement = [*state.agreement, float(plain.gather(1, labels[:, None]).mean())]
    if state.flip is None and len(state.agreement) >= FLIP_TRIAL and beats_chance(plain, labels):
        mirrored = scorer.score(state, held_out, mirrored=True)
        state.flip = flipping_is_harmless(plain, mirrored, labels)
    if state.warmup is None and (last or has_levelled_off(state.agreement)):
        state.warmup = state.epoch
        state.flip = bool(state.flip)  # never tried, never found harmless
