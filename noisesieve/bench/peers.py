"""The peers: AUM's margins, a k-NN vote, folds, and cleanlab."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor, nn

from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.records import Bools, Floats, Ints
from noisesieve.measure.metrics import average_precision, detection

NEIGHBOURS = (5, 10, 20, 50)  # numbers of neighbours that are tried
FOLDS = 5
BLOCK = 1024
CLEANLAB_FILTERS = ("prune_by_noise_rate", "prune_by_class", "both", "confident_learning", "predicted_neq_given")
CLEANLAB_SCORES = ("self_confidence", "normalized_margin")


class MarginSum:
    """Area under the margin: the logit of the given label minus the largest other one, averaged over training."""

    def __init__(self, labels: Tensor) -> None:
        self._labels = labels
        self._sum = torch.zeros(len(labels), dtype=torch.float64)
        self._steps = torch.zeros(len(labels), dtype=torch.float64)

    def add(self, logits: Tensor, rows: Tensor) -> None:
        """Add one training step: logits (B, K) of these rows."""
        values, given = logits.cpu().double(), self._labels[rows][:, None]
        others = values.scatter(1, given, -torch.inf).max(dim=1).values
        self._sum[rows] += values.gather(1, given).squeeze(1) - others
        self._steps[rows] += 1

    def mean(self) -> Floats:
        """Return the mean margins, (N,); below zero another class had the larger logit on average."""
        average: Floats = (self._sum / self._steps.clamp(min=1)).numpy()
        return average


def vote(points: Tensor, labels: Tensor, classes: int) -> tuple[Floats, Bools]:
    """Return the share of nearest neighbours (weighted by cosine) with another label, and which rows are outvoted.

    The number of neighbours is the one whose vote agrees most often with the given labels.
    """
    points = nn.functional.normalize(points - points.mean(dim=0), dim=1)
    weights, neighbours = _nearest(points, min(max(NEIGHBOURS), len(points) - 1))
    best = (-1.0, torch.zeros(0))
    for k in sorted({min(k, weights.shape[1]) for k in NEIGHBOURS}):
        votes = torch.zeros((len(points), classes), dtype=torch.float64)
        votes.scatter_add_(1, labels[neighbours[:, :k]], weights[:, :k].double())
        agreement = float((votes.argmax(dim=1) == labels).double().mean())
        if agreement > best[0]:
            best = agreement, votes / votes.sum(dim=1, keepdim=True)
    shares = best[1]
    own = shares.gather(1, labels[:, None]).squeeze(1)
    return (1 - own).numpy(), (own < shares.max(dim=1).values).numpy()


def _nearest(points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return weights and rows of the nearest points of every row, (N, count), nearest first."""
    parts = []
    for start in range(0, len(points), BLOCK):
        similarity = points[start : start + BLOCK] @ points.T
        rows = torch.arange(len(similarity))
        similarity[rows, start + rows] = -torch.inf  # a row is not its own neighbour
        parts.append(similarity.topk(count, dim=1))
    weights = torch.cat([part.values for part in parts]).clamp(min=0) + 1e-6
    return weights, torch.cat([part.indices for part in parts])


def stratified_folds(labels: Ints, count: int, *, seed: int) -> list[Ints]:
    """Return the rows of each fold, stratified by class."""
    from sklearn.model_selection import StratifiedKFold

    splitter = StratifiedKFold(count, shuffle=True, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes with fewer rows than folds
        return [held for _, held in splitter.split(np.zeros((len(labels), 1)), labels)]


def require_folds(labels: Ints, count: int) -> None:
    """Refuse, before anything is trained, a dataset with too few rows for folds."""
    if int(np.bincount(labels).max()) < count:
        raise InputError(f"No class has {count} rows: too few for {count} folds.", "Leave cleanlab out of --methods.")


def cleanlab_issues(labels: Ints, probs: Floats, *, score: str = CLEANLAB_SCORES[0]) -> tuple[Floats, Bools]:
    """Return one of cleanlab's quality scores as a ranking, and the rows of its default filter."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    flagged: Bools = find_label_issues(labels, probs, n_jobs=1)
    return -get_label_quality_scores(labels, probs, method=score), flagged


def best_cleanlab_issues(labels: Ints, probs: Floats, known: Bools, wrong: Bools) -> tuple[Floats, Bools]:
    """Return cleanlab's best ranking and its best filter, picked with the truth: no user can do better with it."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    filters = [find_label_issues(labels, probs, filter_by=name, n_jobs=1) for name in CLEANLAB_FILTERS]
    scores = [-get_label_quality_scores(labels, probs, method=name) for name in CLEANLAB_SCORES]
    return (
        max(scores, key=lambda suspicion: average_precision(suspicion[known], wrong) or 0.0),
        max(filters, key=lambda flagged: detection(flagged[known], wrong).f1 or 0.0),
    )


def require_cleanlab() -> None:
    """Raise an error, before anything is trained, if cleanlab is not installed."""
    try:
        import cleanlab  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "cleanlab is not installed.", "pip install cleanlab scikit-learn, or leave it out of --methods."
        ) from error
