"""The training data, and the order of its batches, which depends on the seed and the epoch alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from noisesieve.core.recipes import NetworkRecipe
from noisesieve.core.records import Pixels


@dataclass(frozen=True)
class TrainingData:
    """The readable rows: images, given labels, and which rows are known to be right."""

    pixels: Pixels
    labels: Tensor  # (N,) int64
    classes: int
    trusted: Tensor  # (N,) bool: never dropped
    weights: Path | None = None  # file of the initial weights
    score_only: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # rows that are only scored

    def __len__(self) -> int:
        return len(self.labels)

    def prior(self, *, balanced: bool = False) -> Tensor:
        """Return the frequency of each given label over the whole noisy dataset, (K,) float64; uniform if balanced."""
        if balanced:
            return torch.full((self.classes,), 1 / self.classes, dtype=torch.float64)
        return torch.bincount(self.labels, minlength=self.classes).double() / len(self.labels)


def make_generator(seed: int, *position: int) -> torch.Generator:
    """Return a generator seeded by the seed and a position in the run, such as epoch and step."""
    for number in position:
        seed = (seed * 6364136223846793005 + number * 1442695040888963407 + 1) % 2**63
    return torch.Generator().manual_seed(seed)


def batches_of(labels: Tensor, without: Tensor, recipe: NetworkRecipe, generator: torch.Generator) -> list[Tensor]:
    """Return the batches of one epoch over all rows but `without`: `epoch_steps` of them, or every row once."""
    rows, size, steps = len(labels), recipe.batch_size, recipe.epoch_steps
    if recipe.balanced:
        steps = steps or max(1, (rows - len(without)) // size)
        return balanced_batches(labels, without, size=size, steps=steps, generator=generator)
    batches = shuffled_batches(rows, without, size=size, generator=generator)
    while steps and len(batches) < steps:  # more batches than one pass over the rows gives
        batches += shuffled_batches(rows, without, size=size, generator=generator)
    return batches[:steps]


def balanced_batches(
    labels: Tensor, without: Tensor, *, size: int, steps: int, generator: torch.Generator
) -> list[Tensor]:
    """Return batches with uniformly drawn classes and, for each, a row of that class drawn with replacement."""
    rows = torch.arange(len(labels))
    rows = rows[~torch.isin(rows, without)]
    rows = rows[labels[rows].argsort(stable=True)]  # by class
    present, counts = labels[rows].unique_consecutive(return_counts=True)
    starts = counts.cumsum(0) - counts
    drawn = torch.randint(0, len(present), (steps, size), generator=generator)
    position = (torch.rand((steps, size), generator=generator, dtype=torch.float64) * counts[drawn]).long()
    return list(rows[starts[drawn] + position].unbind(0))


def shuffled_batches(rows: int, without: Tensor, *, size: int, generator: torch.Generator) -> list[Tensor]:
    """Return all rows but `without` in shuffled batches, without an incomplete last one (BatchNorm needs two rows)."""
    order = torch.randperm(rows, generator=generator)
    order = order[~torch.isin(order, without)]
    size = min(size, len(order))
    return list(order[: len(order) - len(order) % size].split(size))
