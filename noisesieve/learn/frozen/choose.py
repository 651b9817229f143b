"""Choose the depths of the features for a dataset, by agreement with its own labels: no truth is needed."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from noisesieve.core.recipes import HeadRecipe
from noisesieve.core.records import DepthEvidence, Floats, Ints
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.frozen.heads import HeadData, Heads

ROWS = 10_000  # rows that are compared on, at most
EPOCHS = 12


def choose_depths(
    data: HeadData, recipe: HeadRecipe, session: TrainingSession
) -> tuple[HeadRecipe, list[DepthEvidence] | None]:
    """Return the recipe with the depths whose heads agree best with the given labels of rows they never saw.

    All combinations of the stored depths are compared, with one partition into folds and few epochs.
    """
    known = data.features.depths
    if recipe.depths or len(known) == 1:
        return replace(recipe, depths=recipe.depths or known), None
    part, quick = _sample(data), quick_recipe(recipe)
    every = [depths for count in range(len(known), 0, -1) for depths in combinations(known, count)]
    found = [_measure(part, replace(quick, depths=depths), session) for depths in every]
    best = max(found, key=lambda evidence: evidence.score)  # of equal ones the first, which has more depths
    return replace(recipe, depths=tuple(best.depths)), found


def quick_recipe(recipe: HeadRecipe) -> HeadRecipe:
    """Return a shorter recipe, for comparing: one partition, few epochs, phases in proportion."""
    share = min(1.0, EPOCHS / recipe.epochs)
    return replace(
        recipe,
        head_seeds=1,
        epochs=round(recipe.epochs * share),
        warmup_epochs=max(1, round(recipe.warmup_epochs * share)),
        ramp_epochs=round(recipe.ramp_epochs * share),
        sieve_start=round((recipe.sieve_start - 1) * share) + 1,
        average_epochs=min(2, recipe.average_epochs),
    )


def _measure(data: HeadData, recipe: HeadRecipe, session: TrainingSession) -> DepthEvidence:
    quiet = TrainingSession(stop=session.stop, processes=session.processes)
    _, scores = Heads(data, recipe, quiet).run()
    agreement, class_agreement = agreements(scores.probs, data.labels.numpy())
    return DepthEvidence(list(recipe.depths), agreement, class_agreement)


def agreements(probs: Floats, labels: Ints) -> tuple[float, float]:
    """Return how often the most probable class is the given label: over all rows, and as a mean over the classes."""
    right = (probs.argmax(axis=1) == labels).astype(np.float64)
    rows = np.bincount(labels)
    by_class = np.bincount(labels, weights=right)[rows > 0] / rows[rows > 0]
    return float(right.mean()), float(by_class.mean())


def _sample(data: HeadData) -> HeadData:
    """Return evenly spaced rows, at most ROWS; a class that would lose all its rows keeps one."""
    count = len(data.labels)
    if count <= ROWS:
        return data
    rows = np.linspace(0, count - 1, ROWS).round().astype(np.int64)
    labels = data.labels.numpy()
    lost = np.setdiff1d(np.unique(labels), labels[rows])
    first = np.array([np.flatnonzero(labels == label)[0] for label in lost], dtype=np.int64)
    rows = np.unique(np.concatenate((rows, first)))
    chosen: Tensor = torch.from_numpy(rows)
    return replace(data, features=data.features.take(rows), labels=data.labels[chosen], trusted=data.trusted[chosen])
