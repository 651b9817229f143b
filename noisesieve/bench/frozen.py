"""The same contest on frozen features: every method gets the same features of the same backbone, and no other picture.

cleanlab gets what its own guides train on embeddings, a logistic regression, out of fold, and the mirrored views
where the heads get them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from noisesieve.bench import peers
from noisesieve.bench.contest import Contest, Training
from noisesieve.learn.heads import Heads
from noisesieve.records import Floats
from noisesieve.settings import Recipe


@dataclass
class FrozenContest(Contest):
    """Heads instead of networks. Seconds are those of the verdicts: the features are there."""

    features: Tensor | None = None  # (N, V, D)
    contents: Tensor | None = None  # (N,) rows with the same number are the same picture

    @property
    def shares(self) -> bool:
        return False  # heads are cheap, and a fresh start is fair

    def train(self, recipe: Recipe, *, observe: Callable[[Tensor, Tensor], None] | None = None) -> Training:
        assert self.features is not None
        lesson = self.lesson
        heads = Heads(
            self.features,
            lesson.labels,
            lesson.classes,
            lesson.trusted,
            recipe,
            device=self.world.device,
            watcher=self.watcher,
            stop=self.stop,
            contents=self.contents,
            observe=observe,
        )
        head, scores = heads.run()
        self.warmup, self.flip = recipe.warmup_epochs, head.flip
        return Training(None, scores)

    def embeddings(self) -> Tensor:
        """Both views averaged, where pictures may be mirrored."""
        assert self.features is not None
        views = self.features.shape[1] if self.flip else 1
        return self.features[:, :views].float().mean(dim=1)

    def neighbours_training(self) -> Training:
        """None: a vote on the features needs no training, only to know whether pictures may be mirrored."""
        if not self.warmup:
            _ = self.plain
        return Training(None, replace(self.plain.scores, history=[]))

    def out_of_fold(self) -> tuple[Floats, float, float]:
        """Probabilities by logistic regressions that never saw the row, their seconds, and their passes."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        if not self.warmup:
            _ = self.plain  # only to learn whether pictures may be mirrored
        assert self.features is not None
        start, labels, rows = time.monotonic(), self.lesson.labels.numpy(), len(self.lesson)
        views = self.features[:, : self.features.shape[1] if self.flip else 1].float()  # (N, V, D)
        scaler = StandardScaler().fit(views[:, 0].numpy())
        points = np.stack([scaler.transform(view.numpy()) for view in views.unbind(1)])  # (V, N, D)
        probs: Floats = np.zeros((rows, self.lesson.classes))
        passes = 0.0
        for held in peers.folds(labels, peers.FOLDS, seed=self.recipe.seed):
            rest = np.setdiff1d(np.arange(rows), held)
            model = LogisticRegression(max_iter=1000)
            model.fit(np.concatenate(points[:, rest]), np.tile(labels[rest], len(points)))
            said = np.mean([model.predict_proba(view[held]) for view in points], axis=0)
            probs[np.ix_(held, model.classes_)] = said
            passes += float(model.n_iter_.max()) * len(points) * len(rest) / rows
            if (asked := self.stop()) is not None:
                raise asked
        return probs, time.monotonic() - start, passes
