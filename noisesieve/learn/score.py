"""Scoring: class probabilities in eval mode, without augmentation, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from noisesieve.core.errors import TrainingError
from noisesieve.core.memory import room_for
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.device import Precision, in_float64_on, read_behind
from noisesieve.learn.distributed import Processes
from noisesieve.learn.networks.depths import Network
from noisesieve.learn.state import TrainingState

CPU_BATCH, GPU_BATCH = 128, 512  # on a CPU larger batches fall out of its caches: 512 take twice as long
SCORE_SIDE = 64  # side in pixels up to which these are scored at a time; larger images get smaller batches


def scoring_batch_size(image_size: int, device: torch.device) -> int:
    """Return how many images of this size are scored at a time."""
    most = CPU_BATCH if device.type == "cpu" else GPU_BATCH
    return max(1, min(most, most * SCORE_SIDE**2 // image_size**2))


class Scorer:
    """Scores rows with the averaged weights of a training. Under torchrun the ranks share the work."""

    def __init__(self, loader: BatchLoader, processes: Processes, classes: int, pause: Callable[[], None]) -> None:
        self._loader, self._processes, self._classes, self._pause = loader, processes, classes, pause

    def zeros(self, rows: int) -> Tensor:
        """Return room for the probabilities of this rank's part of `rows` rows, in float32."""
        mine = self._processes.part(torch.arange(rows))
        return torch.from_numpy(room_for((len(mine), self._classes)))

    def score(
        self,
        state: TrainingState,
        rows: Tensor,
        *,
        mirrored: bool | None = None,
        reduce: Callable[[Tensor, Tensor], Tensor] = lambda probs, rows: probs,
        add_to: Tensor | None = None,
        sum_name: str = "",
    ) -> Tensor:
        """Return `reduce(probabilities (B, K), rows (B,))` of every batch, concatenated over all rows, on every rank.

        `mirrored` None: the mean over the plain and the mirrored view if flips are allowed, else the plain view;
        False: the plain view; True: the mirrored view. The probabilities of this rank's part of the rows are added to
        `add_to`; if that is a sum of the state, of this name, without those rows that were added before a stop.
        """
        mine = self._processes.part(rows)
        batches = list(mine.split(scoring_batch_size(self._loader.size, self._loader.mean.device))) if len(mine) else []
        parts, begin = [], 0
        state.average.eval()
        with torch.inference_mode():
            for batch, (probs,) in read_behind(self._launched(state, batches, mirrored)):
                if not torch.isfinite(probs).all():
                    raise TrainingError(
                        f"The scores are not finite after epoch {state.epoch}.",
                        "Lower --lr or --beta, or lengthen --warmup-epochs.",
                    )
                parts.append(reduce(probs, batch))
                end = begin + len(batch)
                if add_to is not None and end > state.scored.get(sum_name, 0):
                    add_to[begin:end] += probs.float()
                    if sum_name:
                        state.scored[sum_name] = end
                begin = end
                self._pause()
        if not parts:
            parts = [reduce(torch.zeros((0, self._classes), dtype=torch.float64), rows[:0])]
        return self._processes.gather(torch.cat(parts), len(rows)).clone()  # clone: a normal, not an inference tensor

    def _launched(
        self, state: TrainingState, batches: list[Tensor], mirrored: bool | None
    ) -> Iterator[tuple[Tensor, tuple[Tensor]]]:
        """Launch each batch, and yield its rows and its probabilities on the device."""
        for batch, images in zip(batches, self._loader.batches(batches), strict=True):
            plain = self._loader.normalize(images)
            views = [plain.flip(3)] if mirrored else [plain]
            if mirrored is None and state.flip:
                views.append(plain.flip(3))
            yield batch, (mean_probabilities(state.average, views, state.precision),)


def predict(
    network: Network,
    loader: BatchLoader,
    rows: Tensor | None = None,
    *,
    flip: bool,
    heads: int = 1,
    done: Callable[[int], None] = lambda count: None,
) -> Tensor:
    """Return the class probabilities (N, K) of some rows, or of all; `flip`: averaged over both views.

    With several `heads` in the last layer: (heads, N, K), those of each head. `done` is called with the size of each
    finished batch.
    """
    network.eval()
    rows = torch.arange(len(loader)) if rows is None else rows
    precision, start = Precision(loader.mean.device), 0
    probs = torch.from_numpy(room_for((heads, len(rows), network.fc.out_features // heads)))
    batches = list(rows.split(scoring_batch_size(loader.size, loader.mean.device))) if len(rows) else []

    def launched() -> Iterator[tuple[int, tuple[Tensor]]]:
        for images in loader.batches(batches):
            plain = loader.normalize(images)
            views = [plain, plain.flip(3)] if flip else [plain]
            yield len(images), (mean_probabilities(network, views, precision, heads),)

    with torch.inference_mode():
        for count, (found,) in read_behind(launched()):
            probs[:, start : start + count] = found.unflatten(1, (heads, -1)).transpose(0, 1).float()
            start += count
            done(count)
    return probs if heads > 1 else probs[0]


def mean_probabilities(network: nn.Module, views: list[Tensor], precision: Precision, heads: int = 1) -> Tensor:
    """Return the class probabilities (B, heads * K) in float64, averaged over the views of a batch, on the device."""
    total: Tensor | None = None
    for view in views:
        with precision.autocast():
            logits = network(view)
        probs = split_softmax(in_float64_on(logits), heads)
        total = probs if total is None else total + probs
    assert total is not None
    return total / len(views)


def split_softmax(logits: Tensor, heads: int) -> Tensor:
    """Return the softmax (B, heads * K) of each head's own logits (B, heads * K)."""
    probs: Tensor = logits.unflatten(1, (heads, -1)).softmax(dim=2).flatten(1)
    return probs
