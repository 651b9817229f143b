"""What is to be learnt, and in which order: the same for a seed, wherever a run was interrupted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from noisesieve.records import Pixels
from noisesieve.settings import Recipe


@dataclass(frozen=True)
class Lesson:
    """By readable row: pictures, given labels, and rows known to be right."""

    pixels: Pixels
    labels: Tensor  # (N,) int64
    classes: int
    trusted: Tensor  # (N,) bool: never sieved out
    weights: Path | None = None  # the file that training starts from
    aside: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # rows scored, never trained on

    def __len__(self) -> int:
        return len(self.labels)

    def prior(self, *, balanced: bool = False) -> Tensor:
        """The frequency of each given label over the whole noisy dataset, or an even sampler's, (K,) float64."""
        if balanced:
            return torch.full((self.classes,), 1 / self.classes, dtype=torch.float64)
        return torch.bincount(self.labels, minlength=self.classes).double() / len(self.labels)


def generator(seed: int, *place: int) -> torch.Generator:
    """Randomness that depends on the seed and the place in the run alone."""
    for number in place:
        seed = (seed * 6364136223846793005 + number * 1442695040888963407 + 1) % 2**63
    return torch.Generator().manual_seed(seed)


def batches_of(labels: Tensor, without: Tensor, recipe: Recipe, dice: torch.Generator) -> list[Tensor]:
    """An epoch's batches of all rows but `without`: as many as the recipe says, or as the rows make."""
    rows, size, steps = len(labels), recipe.batch_size, recipe.epoch_steps
    if recipe.balanced:
        steps = steps or max(1, (rows - len(without)) // size)
        return balanced_batches(labels, without, size=size, steps=steps, generator=dice)
    batches = shuffled_batches(rows, without, size=size, generator=dice)
    while steps and len(batches) < steps:  # more than the rows make: another round
        batches += shuffled_batches(rows, without, size=size, generator=dice)
    return batches[:steps]


def balanced_batches(
    labels: Tensor, without: Tensor, *, size: int, steps: int, generator: torch.Generator
) -> list[Tensor]:
    """Batches whose labels are drawn evenly over the classes, then a row of each, with replacement."""
    rows = torch.arange(len(labels))
    rows = rows[~torch.isin(rows, without)]
    rows = rows[labels[rows].argsort(stable=True)]  # by class
    present, counts = labels[rows].unique_consecutive(return_counts=True)
    starts = counts.cumsum(0) - counts
    drawn = torch.randint(0, len(present), (steps, size), generator=generator)
    place = (torch.rand((steps, size), generator=generator, dtype=torch.float64) * counts[drawn]).long()
    return list(rows[starts[drawn] + place].unbind(0))


def shuffled_batches(rows: int, without: Tensor, *, size: int, generator: torch.Generator) -> list[Tensor]:
    """All rows but `without`, in batches; an incomplete last one is left out (BatchNorm cannot use a single row)."""
    order = torch.randperm(rows, generator=generator)
    order = order[~torch.isin(order, without)]
    size = min(size, len(order))
    return list(order[: len(order) - len(order) % size].split(size))
