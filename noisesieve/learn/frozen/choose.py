"""Choose depths and loss for a dataset, by agreement with its own labels: no truth is needed.

Every combination of the stored depths is measured by least squares on the projected features, with a closed form for
every fold: how often does the most probable class of a row, by classifiers that never saw it, equal its given label?
This orders the depths as heads that are trained on them do, in a tenth of the time. The loss, that is beta, prior and
weight decay, is then chosen by heads with one partition into folds. Under much noise the regularizer is worth most;
under little noise cross-entropy flags fewer right labels; a uniform prior is needed where one class has most rows.
At last the floor of the sieve in the loop: a large one finds consistent mistakes, a small one drops fewer right labels.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from noisesieve.core.records import Ints
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.evidence import DepthEvidence, LossEvidence
from noisesieve.learn.frozen.folds import assign_folds
from noisesieve.learn.frozen.head_data import HeadData, Projected
from noisesieve.learn.frozen.heads import Heads
from noisesieve.learn.frozen.projection import Projection
from noisesieve.learn.recipes import HeadRecipe

ROWS = 10_000  # rows that are compared on, at most
# Beta, prior and weight decay; the first of equal ones is taken. How they were found: noisesieve/bench/README.md.
LOSSES = ((2.0, "counted", 5e-2), (2.0, "counted", 2e-2), (2.0, "uniform", 1e-1), (0.0, "counted", 1e-1))
LOOP_FLOORS = (1e-4, 1e-8)  # floors in the loop that are tried beside the recipe's
LEAD = 0.004  # by which cross-entropy must agree better: it underrates mistakes that many annotators share
CLASSES = 100  # classes that losses are compared on, at most: more would take minutes
RIDGE = 1.0  # weight of the penalty; the projected features have a mean square of about one


def choose_depths(
    data: HeadData, recipe: HeadRecipe, session: TrainingSession
) -> tuple[HeadRecipe, list[DepthEvidence] | None]:
    """Return the recipe with the depths that agree best with the given labels, and what they were chosen from."""
    known = data.features.depths
    if recipe.depths or len(known) == 1:
        return replace(recipe, depths=recipe.depths or known), None
    part, compared = _take(data, _compared_rows(len(data.labels))), []
    for count in range(len(known), 0, -1):
        for depths in combinations(known, count):
            session.pause()
            compared.append(measure_depths(part, depths, recipe))
    best = max(compared, key=lambda evidence: evidence.score)  # of equal ones the first, which has more depths
    return replace(recipe, depths=tuple(best.depths)), compared


def choose_loss(
    data: HeadData, projected: Projected, recipe: HeadRecipe, session: TrainingSession
) -> tuple[HeadRecipe, list[LossEvidence] | None]:
    """Return the recipe with the loss whose heads agree best with the given labels, and what it was chosen from."""
    if not recipe.adaptive_beta:
        return recipe, None
    quiet = TrainingSession(stop=session.stop, processes=session.processes)
    part, rows = fewer_classes(data)
    projected = projected.take(torch.from_numpy(rows))
    floors = LOOP_FLOORS if recipe.adaptive_loop_eps and part.classes > 2 else ()  # with two, every floor is the same

    def measure(chosen: HeadRecipe) -> LossEvidence:
        short = replace(chosen, head_seeds=1, adaptive_eps=False)
        _, scores = Heads(part, short, quiet, projected=projected).run()
        session.advance(1)
        return LossEvidence(
            *agreements(scores.probs.argmax(axis=1), part.labels.numpy()),
            beta=chosen.beta,
            prior=chosen.prior,
            weight_decay=chosen.weight_decay,
            loop_eps=chosen.loop_eps,
        )

    session.stage("comparing", len(LOSSES) + len(floors))
    losses = [replace(recipe, beta=beta, prior=prior, weight_decay=decay) for beta, prior, decay in LOSSES]
    compared = [measure(loss) for loss in losses]
    recipe = best_loss(losses, compared)
    losses += [replace(recipe, loop_eps=floor) for floor in floors]
    compared += [measure(loss) for loss in losses[len(compared) :]]
    session.finish()
    return best_loss(losses, compared), compared


def best_loss(losses: list[HeadRecipe], compared: list[LossEvidence]) -> HeadRecipe:
    """Return the loss that agrees best; of equal ones the first."""
    scores = [evidence.score - (LEAD if evidence.beta == 0 else 0.0) for evidence in compared]
    return losses[scores.index(max(scores))]


def fewer_classes(data: HeadData) -> tuple[HeadData, Ints]:
    """Return the rows that losses are compared on, of at most CLASSES evenly spaced classes, and their numbers."""
    if data.classes <= CLASSES:
        rows = _compared_rows(len(data.labels))
        return _take(data, rows), rows
    kept = np.linspace(0, data.classes - 1, CLASSES).round().astype(np.int64)
    labels = data.labels.numpy()
    rows = np.flatnonzero(np.isin(labels, kept))
    rows = rows[_compared_rows(len(rows))]
    present, codes = np.unique(labels[rows], return_inverse=True)
    part = replace(_take(data, rows), labels=torch.from_numpy(codes.astype(np.int64)), classes=len(present))
    return part, rows


def _compared_rows(count: int) -> Ints:
    """Return the evenly spaced rows that are compared on."""
    return np.unique(np.linspace(0, count - 1, min(count, ROWS)).round().astype(np.int64))


def _take(data: HeadData, rows: Ints) -> HeadData:
    """Return some rows."""
    chosen = torch.from_numpy(rows)
    return replace(
        data,
        features=data.features.take(rows),
        labels=data.labels[chosen],
        trusted=data.trusted[chosen],
        groups=data.together[chosen],
        unused=None,
    )


def trained_rows(data: HeadData) -> tuple[HeadData, Ints]:
    """Return the rows that heads may be trained on, which alone may choose, and their numbers."""
    rows = np.arange(len(data.labels)) if data.unused is None else np.flatnonzero(~data.unused.numpy())
    return (data if data.unused is None else _take(data, rows)), rows.astype(np.int64)


def measure_depths(data: HeadData, depths: tuple[str, ...], recipe: HeadRecipe) -> DepthEvidence:
    """Return how well least squares on some depths agrees with the given labels, out of fold."""
    projection = Projection.fit(data.features, depths, classes=data.classes, seed=recipe.seed)
    points = projection.project(data.features, views=1)[:, 0]
    fold = assign_folds(data.labels, data.together, folds=recipe.folds, partitions=1, seed=recipe.seed)[:, 0]
    predicted = predict_out_of_fold(points, data.labels, data.classes, fold)
    return DepthEvidence(*agreements(predicted.numpy(), data.labels.numpy()), depths=list(depths))


def predict_out_of_fold(points: Tensor, labels: Tensor, classes: int, fold: Tensor) -> Tensor:
    """Return the class (N,) that a ridge regression on the other folds gives the largest value."""
    if points.shape[1] > len(points):  # the span of the rows is all that counts, and is smaller
        points = points @ torch.linalg.qr(points.T).Q
    targets = one_hot(labels, classes).to(points)
    gram, moment, total, counts = points.T @ points, points.T @ targets, points.sum(dim=0), targets.sum(dim=0)
    predicted = torch.zeros_like(labels)
    for number in range(int(fold.max()) + 1):
        held = fold == number
        own, given = points[held], targets[held]
        rest = max(1, len(points) - len(own))
        center, share = (total - own.sum(dim=0)) / rest, (counts - given.sum(dim=0)) / rest
        inner = gram - own.T @ own - rest * torch.outer(center, center)
        outer = moment - own.T @ given - rest * torch.outer(center, share)
        inner.diagonal().add_(RIDGE * rest)
        weight = torch.linalg.solve(inner.double(), outer.double()).to(points)
        predicted[held] = ((own - center) @ weight + share).argmax(dim=1)
    return predicted


def agreements(predicted: Ints, labels: Ints) -> tuple[float, float]:
    """Return how often the predicted class is the given label: over all rows, and as a mean over the classes."""
    right = (predicted == labels).astype(np.float64)
    rows = np.bincount(labels)
    by_class = np.bincount(labels, weights=right)[rows > 0] / rows[rows > 0]
    return float(right.mean()), float(by_class.mean())
