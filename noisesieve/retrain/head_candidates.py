"""Heads on stored features, trained in several ways and compared without truth.

Every candidate is scored on the same folds, by how often it predicts the *given* label of any readable row that its
heads were not trained on. Agreement on kept rows alone would be circular: the sieve kept what the scan's model agrees
with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from noisesieve.core.records import Bools, Ints, Probabilities
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.frozen.choose import agreements
from noisesieve.learn.frozen.correction import correct
from noisesieve.learn.frozen.head_data import Head, HeadData, Projected
from noisesieve.learn.frozen.heads import Heads
from noisesieve.learn.presets import ce_recipe
from noisesieve.learn.recipes import HeadRecipe

DECAYS = (1e-2, 3e-2, 1e-1, 3e-1)  # weight decays that are tried for each candidate
ROUNDS = 5  # of correcting labels and training on them
ROUND_DECAYS = (3e-2,)  # before the last round one is enough
SURE = 0.7  # P(true class) from which a corrected label is trained on


@dataclass(frozen=True)
class Candidate:
    """One way to train: which labels, on which rows."""

    name: str
    labels: Ints  # (N,)
    used: Tensor  # (N,) bool


@dataclass(frozen=True)
class TrainedCandidate:
    """The heads of a candidate with the weight decay that agrees best."""

    name: str
    rows: int
    weight_decay: float
    agreement: float  # with the given labels of all readable rows, out of fold
    head: Head
    probs: Probabilities  # (N, K) out of fold


def train_candidate(
    candidate: Candidate,
    data: HeadData,
    recipe: HeadRecipe,
    session: TrainingSession,
    *,
    projected: Projected,
    flip: bool,
    decays: Sequence[float] = DECAYS,
) -> TrainedCandidate:
    """Train cross-entropy heads on the candidate's rows and labels. `data` has the given labels."""
    best: TrainedCandidate | None = None
    quiet = TrainingSession(stop=session.stop, processes=session.processes)
    own = replace(data, labels=torch.from_numpy(candidate.labels), unused=~candidate.used)
    for decay in decays:
        plain = replace(ce_recipe(recipe, flip=flip), weight_decay=decay)
        head, scores = Heads(own, plain, quiet, projected=projected).run()
        session.advance(1)
        agreement, _ = agreements(scores.probs.argmax(axis=1), data.labels.numpy())
        if best is None or agreement > best.agreement:
            count = int(candidate.used.sum())
            best = TrainedCandidate(candidate.name, count, decay, agreement, head, scores.probs)
    assert best is not None
    return best


def correct_labels(name: str, probs: Probabilities, data: HeadData, known: Candidate, unusable: Bools) -> Candidate:
    """Return the most probable true classes by the noise model of out-of-fold probabilities (N, K).

    Rows whose class is not sure are left out, and unusable ones. The rows that `known` uses keep its labels.
    """
    classes, sure = correct(torch.from_numpy(probs), data.labels)
    used = (sure >= SURE) & ~torch.from_numpy(unusable) | known.used
    return Candidate(name, np.where(known.used.numpy(), known.labels, classes.numpy()), used)
