"""What a run tells while it trains: a row of history.parquet an epoch, and where it stands for whoever watches."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from noisesieve.learn.schedule import Timeline
from noisesieve.learn.state import State
from noisesieve.watch import Watcher


class Journal:
    """Counts the seconds of an epoch and writes its line."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._seconds = {"train": 0.0, "score": 0.0}

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count a block's time as training or scoring."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._seconds[what] += time.monotonic() - start

    def record(self, state: State, timeline: Timeline, *, steps: int, kept: int, flagged: int, undecided: int) -> None:
        """Add the epoch's row to the history."""
        facts = state.epoch_facts
        row = {
            "epoch": state.epoch,
            "phase": timeline.phase(state.epoch),
            "beta": timeline.beta(state.epoch),
            "learning_rate": timeline.learning_rate(state.epoch, (steps - 1) / steps),
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

    def show(self, state: State, timeline: Timeline, images: int, epoch_images: int) -> None:
        """Tell the watcher where training stands, `images` later than before."""
        rows, kept = len(state.keep), int(state.keep.sum())
        self._watcher.advance(
            images,
            total=timeline.epochs * epoch_images,
            phase=timeline.phase(state.epoch),
            epoch=state.epoch,
            epochs=timeline.epochs,
            beta=timeline.beta(state.epoch),
            kept=kept,
            flagged=rows - kept,
        )
