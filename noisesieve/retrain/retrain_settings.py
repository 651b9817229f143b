"""What a user can ask of a retraining. None means: chosen from the run and the sizes of its two sets."""

from __future__ import annotations

from dataclasses import dataclass

from noisesieve.core.options import TRAINING, Settings, option
from noisesieve.learn.training_settings import MOST_EPOCHS


@dataclass(frozen=True)
class RetrainOptions(Settings):
    """What the user asked of consistency training; None: chosen from the run and the sizes of its two sets."""

    weight: float | None = option(
        None, "Weight of the consistency loss. Default: corrupted rows / clean rows, at most 1.", TRAINING, minimum=0.0
    )
    ratio: float | None = option(
        None, "Unlabelled images per labelled one. Default: as the default of --weight.", TRAINING, minimum=0.0
    )
    target: str | None = option(
        None,
        "Network of the target; epoch-start: the paper's. Default: batch, the same forward pass; else current.",
        TRAINING,
        choices=("current", "batch", "epoch-start", "ema"),
    )
    start: str | None = option(
        None, "Initial weights; run: the scan's. Default: run for many rows.", TRAINING, choices=("scratch", "run")
    )
    epochs: int | None = option(None, "Epochs.", TRAINING, minimum=1, maximum=MOST_EPOCHS)
    warmup_epochs: float | None = option(
        None,
        "Epochs of learning rate warm-up. Default: a tenth of all, at most 5.",
        TRAINING,
        minimum=0.0,
        maximum=MOST_EPOCHS,
    )
    batch_size: int | None = option(None, "Batch size, over all processes.", TRAINING, minimum=2, maximum=10**6)
    lr: float | None = option(None, "Learning rate.", TRAINING, above=0.0, maximum=1e38)
    clip_norm: float = option(5.0, "Maximum norm of the gradients.", TRAINING, above=0.0, maximum=1e38)
    relabel: float | None = option(
        None, "Train on suggested labels of at least this probability.", TRAINING, metavar="P", minimum=0.0, maximum=1.0
    )
    seed: int = option(0, "Seed of all random numbers.", TRAINING, minimum=0, maximum=2**63 - 1)
