"""What heads are trained on, and what they give: records."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from noisesieve.learn.frozen.features import Features
from noisesieve.learn.frozen.projection import Projection
from noisesieve.learn.recipes import HeadRecipe


@dataclass(frozen=True)
class Head:
    """One linear layer on the backbone's features: the mean of all heads."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)
    flip: bool


@dataclass(frozen=True)
class HeadScores:
    """Scores of one pass, out of fold, and each head's sieve decision."""

    margins: Tensor  # (N,) float64, of the mean over the partitions, with the floor of the loop
    first: Tensor  # (N,) float64: probability of the given label from the first partition alone
    first_margin: Tensor  # (N,) margin from the first partition alone, with the floor of the verdict
    clean: Tensor  # (N, H) bool: the row passes this head's sieve; empty if that was not asked for


@dataclass(frozen=True)
class HeadData:
    """The readable rows to train heads on."""

    features: Features
    labels: Tensor  # (N,) int64
    classes: int
    trusted: Tensor  # (N,) bool: never dropped
    groups: Tensor | None = None  # (N,) rows with equal numbers stay in one fold; None: those with the same image

    unused: Tensor | None = None  # (N,) bool: scored, but never trained on

    @property
    def together(self) -> Tensor:
        """(N,) the number of the group that stays in one fold with a row."""
        return self.features.contents if self.groups is None else self.groups


@dataclass(frozen=True)
class Projected:
    """The features of all rows, projected: the same for heads that differ only in their loss."""

    projection: Projection
    points: Tensor  # (N, V, Q)

    @classmethod
    def of(cls, data: HeadData, recipe: HeadRecipe) -> Projected:
        """Project the depths of the recipe, or all that there are."""
        features = data.features
        depths = recipe.depths or features.depths
        projection = Projection.fit(features, depths, classes=data.classes, seed=recipe.seed)
        return cls(projection, projection.project(features, views=features.views))

    def take(self, rows: Tensor) -> Projected:
        """Return the projected features of some rows."""
        return Projected(self.projection, self.points[rows])
