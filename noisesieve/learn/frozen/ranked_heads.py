"""The heads that decide, and beside them the cross-entropy heads that help to rank."""

from __future__ import annotations

from dataclasses import replace

from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.evidence import TrainedScores
from noisesieve.learn.frozen.head_data import Head, HeadData, Projected
from noisesieve.learn.frozen.heads import Heads
from noisesieve.learn.presets import ce_recipe
from noisesieve.learn.recipes import HeadRecipe


def train_ranked_heads(
    data: HeadData, recipe: HeadRecipe, session: TrainingSession, *, projected: Projected
) -> tuple[Head, Head | None, TrainedScores]:
    """Train the heads of a recipe and, unless these have no regularizer, cross-entropy heads on the same features.

    Returns both heads, and the scores with the probabilities of either.
    """
    head, scores = Heads(data, recipe, session, projected=projected).run()
    if not recipe.beta:
        return head, None, scores  # they are cross-entropy heads themselves
    ce_head, ce_scores = Heads(data, ce_recipe(recipe, flip=head.flip), session, projected=projected).run()
    return head, ce_head, replace(scores, ce_probs=ce_scores.probs)
