"""The training data, and the order of its batches, which depends on the seed and the epoch alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from noisesieve.core.files import write_json
from noisesieve.core.records import Pixels
from noisesieve.learn.recipes import NetworkRecipe, recipe_from_document, recipe_to_document
from noisesieve.pixels.transfer import load_pixels, save_pixels


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


@dataclass(frozen=True)
class TrainingTask:
    """One training, as rank 0 passes it to the other ranks."""

    data: TrainingData
    recipe: NetworkRecipe
    checkpoints: Path  # folder of the checkpoints
    identity: str  # hash of settings and data, stored in every checkpoint

    def save(self, folder: Path) -> None:
        """Write the task to a folder that every rank can read."""
        data = self.data
        save_pixels(data.pixels, folder)
        np.savez(
            folder / "arrays.npz",
            labels=data.labels.numpy(),
            trusted=data.trusted.numpy(),
            score_only=data.score_only.numpy(),
        )
        document = {
            "recipe": recipe_to_document(self.recipe),
            "classes": data.classes,
            "weights": None if data.weights is None else str(data.weights),
            "checkpoints": str(self.checkpoints),
            "identity": self.identity,
        }
        write_json(folder / "task.json", document)

    @classmethod
    def load(cls, folder: Path) -> TrainingTask:
        """Read the task that rank 0 saved."""
        document = json.loads((folder / "task.json").read_text(encoding="utf-8"))
        arrays = np.load(folder / "arrays.npz")
        data = TrainingData(
            pixels=load_pixels(folder),
            labels=torch.from_numpy(arrays["labels"]),
            classes=document["classes"],
            trusted=torch.from_numpy(arrays["trusted"]),
            weights=None if document["weights"] is None else Path(document["weights"]),
            score_only=torch.from_numpy(arrays["score_only"]),
        )
        recipe = recipe_from_document(document["recipe"])
        assert isinstance(recipe, NetworkRecipe)
        return cls(data, recipe, Path(document["checkpoints"]), document["identity"])


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
