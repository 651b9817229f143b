"""The compared methods on frozen features. Every method gets the same features of the same backbone.

cleanlab gets a logistic regression, out of fold, as its own guides use on embeddings: on the same projection of the
same depths, and on the mirrored views if the heads get them. Its penalty, and whether the features are standardized,
are tuned by cross-validated accuracy on the given labels, as an expert would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from noisesieve.bench import peers
from noisesieve.bench.methods import Comparison, TrainingResult
from noisesieve.core.records import Floats, Ints
from noisesieve.learn.frozen.features import Features
from noisesieve.learn.frozen.head_data import HeadData, Projected
from noisesieve.learn.frozen.heads import Heads
from noisesieve.learn.frozen.projection import Projection
from noisesieve.learn.frozen.ranked_heads import train_ranked_heads
from noisesieve.learn.recipes import HeadRecipe, Recipe

PLAIN_DECAY = 1e-1  # weight decay of plain cross-entropy
MARGIN_PERCENTILE = 90  # of the margins of rows with a class that does not exist
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # values of C that are tried for cleanlab's logistic regression


@dataclass
class FrozenComparison(Comparison):
    """Heads instead of networks. Seconds do not include the features, which are computed before."""

    features: Features | None = None
    groups: Tensor | None = None  # (N,) rows that stay in one fold

    @property
    def can_share_warmup(self) -> bool:
        return False  # heads are cheap, so each method trains its own from the start

    def train(self, recipe: Recipe, *, observe: Callable[[Tensor, Tensor], None] | None = None) -> TrainingResult:
        assert isinstance(recipe, HeadRecipe)
        head, scores = Heads(self.head_data(), recipe, self.session, observe=observe).run()
        self.warmup, self.flip = recipe.warmup_epochs, head.flip
        return TrainingResult(None, scores)

    def train_as_scan(self) -> TrainingResult:
        """Train both kinds of heads, as a scan does."""
        data, recipe = self.head_data(), self.recipe
        assert isinstance(recipe, HeadRecipe)
        head, _, scores = train_ranked_heads(data, recipe, self.session, projected=Projected.of(data, recipe))
        self.warmup, self.flip = recipe.warmup_epochs, head.flip
        return TrainingResult(None, scores)

    def head_data(self) -> HeadData:
        """Return the rows to train heads on."""
        rows = self.training_data
        assert self.features is not None
        return HeadData(self.features, rows.labels, rows.classes, rows.trusted, self.groups)

    @property
    def plain_recipe(self) -> Recipe:
        """Cross-entropy with the weight decay that is best for it: the regularizer's own would be too weak."""
        return replace(super().plain_recipe, weight_decay=PLAIN_DECAY)

    def margin_threshold(self) -> float:
        """Return AUM's own threshold, from rows that are given a class which does not exist.

        Its authors take the 99th percentile of their margins. The 90th is better for it on the sets for choosing, and
        better than zero.
        """
        data = self.training_data
        picked = np.random.default_rng(self.recipe.seed).choice(
            len(data), len(data) // (data.classes + 1), replace=False
        )
        labels = data.labels.clone()
        labels[torch.from_numpy(picked)] = data.classes
        margins = peers.MarginSum(labels)
        assert self.features is not None
        recipe = self.plain_recipe
        assert isinstance(recipe, HeadRecipe)
        rows = HeadData(self.features, labels, data.classes + 1, data.trusted)
        Heads(rows, replace(recipe, adaptive_eps=False), self.session, observe=margins.add).run()
        return float(np.percentile(margins.mean()[picked], MARGIN_PERCENTILE))

    def embeddings(self) -> Tensor:
        """Return the features, averaged over both views if flips are allowed, (N, D)."""
        return self.points().mean(dim=1)

    def points(self) -> Tensor:
        """Return the features of the chosen depths, (N, V, D): both views if flips are allowed."""
        assert self.features is not None
        everything = slice(0, len(self.features))
        points = torch.cat([self.features.read(depth, everything) for depth in self.recipe.depths], dim=2)
        return points[:, : points.shape[1] if self.flip else 1]

    def neighbours_training(self) -> TrainingResult:
        """Return the plain training with an empty history: the vote needs no training, only the choice of flips."""
        if not self.warmup:
            _ = self.plain
        return TrainingResult(None, replace(self.plain.scores, history=[]))

    def out_of_fold(self) -> tuple[Floats, float, float]:
        """Return out-of-fold probabilities of the best logistic regression, the seconds of all, and its passes."""
        if not self.warmup:
            _ = self.plain  # decides on flips
        assert self.features is not None
        assert isinstance(self.recipe, HeadRecipe)
        start, classes = time.monotonic(), self.training_data.classes
        projection = Projection.fit(self.features, self.recipe.depths, classes=classes, seed=self.recipe.seed)
        views = self.features.views if self.flip else 1
        points = projection.project(self.features, views=views).numpy().swapaxes(0, 1)  # (V, N, Q)
        labels, best = self.training_data.labels.numpy(), (-1.0, np.zeros((0, 0)), 0.0)
        for scale in (1.0, points[0].std(axis=0).clip(min=1e-6)):
            for penalty in PENALTIES:
                probs, passes = self._cross_validate((points / scale).astype(np.float32), labels, penalty)
                accuracy = float((probs.argmax(axis=1) == labels).mean())
                if accuracy > best[0]:
                    best = accuracy, probs, passes
        return best[1], time.monotonic() - start, best[2]

    def _cross_validate(self, points: npt.NDArray[np.float32], labels: Ints, penalty: float) -> tuple[Floats, float]:
        """Return out-of-fold probabilities of one logistic regression, and its passes over the data."""
        from sklearn.linear_model import LogisticRegression

        rows = len(labels)
        probs: Floats = np.zeros((rows, self.training_data.classes))
        passes = 0.0
        for held in peers.stratified_folds(labels, peers.FOLDS, seed=self.recipe.seed):
            rest = np.setdiff1d(np.arange(rows), held)
            model = LogisticRegression(C=penalty, max_iter=1000)
            model.fit(np.concatenate(points[:, rest]), np.tile(labels[rest], len(points)))
            probs[np.ix_(held, model.classes_)] = np.mean([model.predict_proba(view[held]) for view in points], axis=0)
            passes += float(model.n_iter_.max()) * len(points) * len(rest) / rows
            self.session.pause()
        return probs, passes
