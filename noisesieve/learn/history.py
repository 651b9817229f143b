"""The history of a training: one row per epoch for history.parquet, and the progress for the watcher."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from noisesieve.core.progress import Watcher
from noisesieve.learn.schedule import Schedule
from noisesieve.learn.state import TrainingState


class HistoryRecorder:
    """Times the phases of each epoch and adds its row to the history."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._seconds = {"train": 0.0, "score": 0.0}

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time of a block to `train` or `score`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._seconds[what] += time.monotonic() - start

    def record(
        self, state: TrainingState, schedule: Schedule, *, steps: int, kept: int, flagged: int, undecided: int
    ) -> None:
        """Add the row of the current epoch to the history."""
        facts = state.epoch_facts
        row = {
            "epoch": state.epoch,
            "phase": schedule.phase(state.epoch),
            "beta": schedule.beta(state.epoch),
            "learning_rate": schedule.learning_rate(state.epoch, (steps - 1) / steps),
            "train_loss": facts["loss"] / facts["kept"] if facts["kept"] else None,
            "kept": kept,
            "flagged": flagged,
            "undecided": undecided,
            "steps": steps,
            "skipped_steps": int(facts["skipped"]),
            "train_seconds": self._seconds["train"],
            "score_seconds": self._seconds["score"],
            "images_per_second": facts["kept"] / max(1e-9, self._seconds["train"]),
        }
        state.history = [*state.history, row]
        self._seconds = {"train": 0.0, "score": 0.0}

    def show(self, state: TrainingState, schedule: Schedule, images: int, epoch_images: int) -> None:
        """Report `images` further images to the watcher."""
        rows, kept = len(state.keep), int(state.keep.sum())
        self._watcher.advance(
            images,
            total=schedule.epochs * epoch_images,
            phase=schedule.phase(state.epoch),
            epoch=state.epoch,
            epochs=schedule.epochs,
            beta=schedule.beta(state.epoch),
            kept=kept,
            dropped=rows - kept,
        )
