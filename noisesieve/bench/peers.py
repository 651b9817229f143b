"""What the peers need beside a training: AUM's margins, a vote of neighbours, folds, and cleanlab itself."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor, nn

from noisesieve.errors import InputError, UsageError
from noisesieve.records import Bools, Floats, Ints

NEIGHBOURS = 10
FOLDS = 5
BLOCK = 1024


class MarginSum:
    """Area under the margin: the given label's logit minus the largest other one, averaged over every time seen."""

    def __init__(self, labels: Tensor) -> None:
        self._labels = labels
        self._sum = torch.zeros(len(labels), dtype=torch.float64)
        self._seen = torch.zeros(len(labels), dtype=torch.float64)

    def add(self, logits: Tensor, rows: Tensor) -> None:
        """One training step: logits (B, K) of these rows."""
        values, given = logits.cpu().double(), self._labels[rows][:, None]
        others = values.scatter(1, given, -torch.inf).max(dim=1).values
        self._sum[rows] += values.gather(1, given).squeeze(1) - others
        self._seen[rows] += 1

    def mean(self) -> Floats:
        """(N,): below zero another class was ahead on average."""
        found: Floats = (self._sum / self._seen.clamp(min=1)).numpy()
        return found


def vote(points: Tensor, labels: Tensor, classes: int) -> tuple[Floats, Bools]:
    """The share of a row's nearest neighbours (by cosine, weighted by it) with another label, and who is outvoted."""
    points = nn.functional.normalize(points - points.mean(dim=0), dim=1)
    k = min(NEIGHBOURS, len(points) - 1)
    parts = []
    for start in range(0, len(points), BLOCK):
        nearness = points[start : start + BLOCK] @ points.T
        rows = torch.arange(len(nearness))
        nearness[rows, start + rows] = -torch.inf  # a row has no vote in its own case
        weights, who = nearness.topk(k, dim=1)
        votes = torch.zeros((len(nearness), classes))
        votes.scatter_add_(1, labels[who], weights.clamp(min=0) + 1e-6)
        parts.append(votes / votes.sum(dim=1, keepdim=True))
    shares = torch.cat(parts).double()
    own = shares.gather(1, labels[:, None]).squeeze(1)
    return (1 - own).numpy(), (own < shares.max(dim=1).values).numpy()


def folds(labels: Ints, count: int, *, seed: int) -> list[Ints]:
    """Every row in one held-out part, classes in equal shares."""
    from sklearn.model_selection import StratifiedKFold

    splitter = StratifiedKFold(count, shuffle=True, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes of fewer rows than folds: some folds go without
        return [held for _, held in splitter.split(np.zeros((len(labels), 1)), labels)]


def require_folds(labels: Ints, count: int) -> None:
    """Say before anything is trained that there are too few rows to take apart."""
    if int(np.bincount(labels).max()) < count:
        raise InputError(f"No class has {count} rows: too few for {count} folds.", "Leave cleanlab out of --methods.")


def cleanlab_issues(labels: Ints, probs: Floats) -> tuple[Floats, Bools]:
    """cleanlab's default filter, and its label quality as the ranking."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    flagged: Bools = find_label_issues(labels, probs, n_jobs=1)
    return -get_label_quality_scores(labels, probs), flagged


def require_cleanlab() -> None:
    """Say how to get it before anything is trained."""
    try:
        import cleanlab  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "cleanlab is not installed.", "pip install 'noisesieve[bench]', or leave it out of --methods."
        ) from error
