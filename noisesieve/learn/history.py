"""The history of a training: one row per epoch for history.parquet, and the facts beside the progress bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from noisesieve.learn.evidence import EpochRow
from noisesieve.learn.schedule import Schedule


@dataclass
class EpochTotals:
    """Sums over the steps of one epoch. A checkpoint has them, so that a resumed epoch counts every step once."""

    loss: float = 0.0  # summed over images
    kept: int = 0  # images
    skipped: int = 0  # steps
    seconds: float = 0.0


def epoch_row(
    epoch: int,
    schedule: Schedule,
    totals: EpochTotals,
    *,
    counts: tuple[int, int, int, int],  # rows kept, flagged, undecided; steps
    score_seconds: float,
) -> EpochRow:
    """Return the row of an epoch."""
    kept, flagged, undecided, steps = counts
    return EpochRow(
        epoch=epoch,
        phase=schedule.phase(epoch),
        beta=schedule.beta(epoch),
        learning_rate=schedule.learning_rate(epoch, (steps - 1) / steps),
        train_loss=totals.loss / totals.kept if totals.kept else None,
        kept=kept,
        flagged=flagged,
        undecided=undecided,
        steps=steps,
        skipped_steps=totals.skipped,
        train_seconds=totals.seconds,
        score_seconds=score_seconds,
        images_per_second=totals.kept / max(1e-9, totals.seconds),
    )


def progress_facts(epoch: int, schedule: Schedule, *, kept: int, rows: int) -> dict[str, Any]:
    """Return what is shown beside the progress bar."""
    return {
        "phase": schedule.phase(epoch),
        "epoch": epoch,
        "epochs": schedule.epochs,
        "beta": schedule.beta(epoch),
        "kept": kept,
        "dropped": rows - kept,
    }
