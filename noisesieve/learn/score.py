"""Scoring: every row, in eval mode, un-augmented, by the averaged weights; the ranks share the work."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from noisesieve.errors import TrainingError
from noisesieve.learn.feed import Feed, Precision
from noisesieve.learn.state import State
from noisesieve.learn.world import World

SCORE_BATCH = 512
SCORE_SIDE = 64  # pixels, up to which so many fit


def score_batch(image_size: int) -> int:
    """Pictures that are scored at a time: fewer where they are large."""
    return max(1, min(SCORE_BATCH, SCORE_BATCH * SCORE_SIDE**2 // image_size**2))


class Scorer:
    """Class probabilities of rows, in float64."""

    def __init__(self, feed: Feed, world: World, classes: int, pause: Callable[[], None]) -> None:
        self._feed, self._world, self._classes, self._pause = feed, world, classes, pause

    def score(
        self,
        state: State,
        rows: Tensor,
        *,
        mirrored: bool | None = None,
        keep: Callable[[Tensor, Tensor], Tensor] = lambda probs, rows: probs,
    ) -> Tensor:
        """What `keep` makes of the probabilities (B, K) of a batch of rows, for all rows, on every rank.

        Without `mirrored`, both views count where flips are allowed, else the plain one alone.
        """
        mine = self._world.part(rows)
        batches = list(mine.split(score_batch(self._feed.size))) if len(mine) else []
        found = []
        state.average.eval()
        with torch.inference_mode():
            for batch, images in zip(batches, self._feed.batches(batches), strict=True):
                probs = self._probabilities(state, self._feed.normalize(images), mirrored)
                if not torch.isfinite(probs).all():
                    raise TrainingError(
                        f"The scores are not finite after epoch {state.epoch}.",
                        "Lower --lr or --beta, or lengthen --warmup-epochs.",
                    )
                found.append(keep(probs, batch))
                self._pause()
        if not found:
            found = [keep(torch.zeros((0, self._classes), dtype=torch.float64), rows[:0])]
        return self._world.gather(torch.cat(found), len(rows)).clone()  # no inference tensor leaves this room

    def _probabilities(self, state: State, images: Tensor, mirrored: bool | None) -> Tensor:
        views = [images.flip(3)] if mirrored else [images]
        if mirrored is None and state.flip:
            views.append(images.flip(3))
        return mean_probabilities(state.average, views, state.precision)


def mean_probabilities(network: nn.Module, views: list[Tensor], precision: Precision) -> Tensor:
    """Class probabilities (B, K) in float64, averaged over the views of a batch."""
    total: Tensor | None = None
    for view in views:
        with precision.autocast():
            logits = network(view)
        probs = logits.cpu().double().softmax(dim=1)
        total = probs if total is None else total + probs
    assert total is not None
    return total / len(views)
