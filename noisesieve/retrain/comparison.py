"""Which of several retrained models is saved, by given labels that none of them was trained on."""

from __future__ import annotations

import numpy as np

from noisesieve.core.records import Bools

CHANCE = 3.0  # standard errors of a paired difference up to which it counts as chance: four others are compared


def choose(hits: dict[str, Bools], preferred: str) -> tuple[str, str]:
    """Return the candidate to save and the best one: `preferred`, unless the best leads it by more than chance.

    `hits` has for each (N,) whether it predicts the given label of a row that it was not trained on.
    """
    if len(hits) == 1 or not len(hits[preferred]):
        return preferred, preferred
    best = max(hits, key=lambda name: float(hits[name].mean()))  # of equal ones the first
    lead = hits[best].astype(np.float64) - hits[preferred]
    return (best if lead.mean() > CHANCE * lead.std() / len(lead) ** 0.5 else preferred), best
