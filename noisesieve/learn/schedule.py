"""The schedule of a training: phases, beta and learning rate as functions of the epoch, which counts from 1.

Ours: torch's schedulers have a state, and our length changes when the warm-up ends early.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from noisesieve.learn.recipes import SieveSchedule

LR_END = 0.01  # final learning rate of the cosine, as a share of the initial one


@dataclass(frozen=True)
class Schedule:
    """A recipe with the actual length of its warm-up. If that is shorter, all later phases start earlier."""

    recipe: SieveSchedule
    warmup: int

    @property
    def epochs(self) -> int:
        return self.recipe.epochs - self._saved

    @property
    def sieve_start(self) -> int:
        """The first epoch that trains on sieved rows."""
        return max(1, self.recipe.sieve_start - self._saved)

    @property
    def _saved(self) -> int:
        return self.recipe.warmup_epochs - self.warmup

    @property
    def snapshot_epoch(self) -> int:
        """The last epoch of plain cross-entropy: warm-up plus settle epochs."""
        return self.warmup + self.recipe.settle_epochs

    def beta(self, epoch: int) -> float:
        """Return 0 up to `snapshot_epoch`, then a linear ramp, then a constant."""
        if epoch <= self.snapshot_epoch:
            return 0.0
        ramp = self.recipe.ramp_epochs
        return self.recipe.beta * (min(1.0, (epoch - self.snapshot_epoch) / ramp) if ramp else 1.0)

    def phase(self, epoch: int) -> str:
        """Return the phase of an epoch: warm-up, settle, ramp or sieve."""
        if epoch <= self.warmup:
            return "warm-up"
        if epoch <= self.snapshot_epoch:
            return "settle"
        return "sieve" if epoch >= self.sieve_start else "ramp"

    def scores_after(self, epoch: int) -> bool:
        """Return True if the scoring pass after this epoch sets v for the next one, or the verdict."""
        return epoch >= self.sieve_start - 1 or epoch == self.epochs

    def learning_rate(self, epoch: int, part: float) -> float:
        """Return the learning rate when `part` (0 to 1) of the epoch is done."""
        lr, now = self.recipe.lr, epoch - 1 + part
        if self.recipe.lr_schedule == "steps":
            rate = lr * 0.1 ** sum(epoch > step for step in self.recipe.lr_steps)
            return rate / (1 + self.beta(epoch)) if self.recipe.lr_over_beta else rate
        if self.recipe.lr_schedule == "cosine":  # over the whole run; lower for larger beta
            return lr / (1 + self.beta(epoch)) * half_cosine(now / self.epochs)
        if now < self.warmup:
            return lr * min(1.0, (now + 0.01) / self.recipe.lr_rise)
        start, end = (
            (self.warmup, self.snapshot_epoch) if now < self.snapshot_epoch else (self.snapshot_epoch, self.epochs)
        )
        rest = (now - start) / max(1, end - start)
        return lr * (LR_END + (1 - LR_END) * half_cosine(rest))


def half_cosine(share: float) -> float:
    """Return a factor that falls from 1 to 0 along half a cosine, when `share` (0 to 1) is done."""
    return (1 + math.cos(math.pi * share)) / 2
