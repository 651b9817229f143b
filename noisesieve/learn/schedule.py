"""When what happens: warm-up, settle, ramp, sieve. Pure functions of the epoch, which counts from 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

from noisesieve.settings import Recipe

LR_RISE = 2.0  # epochs over which "hold" brings the rate up
LR_END = 0.01  # share of the rate that the cosine ends with


@dataclass(frozen=True)
class Timeline:
    """A recipe with the length that its warm-up really had; what comes after moves with it."""

    recipe: Recipe
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
    def settled(self) -> int:
        """The last epoch of plain cross-entropy."""
        return self.warmup + self.recipe.settle_epochs

    def beta(self, epoch: int) -> float:
        """0 in the warm-up and while settling, then linear, then constant."""
        if epoch <= self.settled:
            return 0.0
        ramp = self.recipe.ramp_epochs
        return self.recipe.beta * (min(1.0, (epoch - self.settled) / ramp) if ramp else 1.0)

    def phase(self, epoch: int) -> str:
        """warm-up, settle, ramp or sieve: what the epoch is there for."""
        if epoch <= self.warmup:
            return "warm-up"
        if epoch <= self.settled:
            return "settle"
        return "sieve" if epoch >= self.sieve_start else "ramp"

    def scores_after(self, epoch: int) -> bool:
        """True where the scoring pass after this epoch decides the next one, or the verdict."""
        return epoch >= self.sieve_start - 1 or epoch == self.epochs

    def learning_rate(self, epoch: int, part: float) -> float:
        """The rate when `part` (0 to 1) of the epoch is done."""
        lr, now = self.recipe.lr, epoch - 1 + part
        if self.recipe.lr_schedule == "steps":
            return lr * 0.1 ** sum(epoch > step for step in self.recipe.lr_steps)
        if self.recipe.lr_schedule == "cosine":  # over the whole run, smaller as beta pulls harder
            return lr / (1 + self.beta(epoch)) * (1 + math.cos(math.pi * now / self.epochs)) / 2
        if now < self.warmup:
            return lr * min(1.0, (now + 0.01) / LR_RISE)
        start, end = (self.warmup, self.settled) if now < self.settled else (self.settled, self.epochs)
        rest = (now - start) / max(1, end - start)
        return lr * (LR_END + (1 - LR_END) * (1 + math.cos(math.pi * rest)) / 2)
