"""What a user can ask of a training. None means: chosen from the data and the machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisesieve.core.errors import UsageError
from noisesieve.core.options import MACHINE, NETWORK, TRAINING, Settings, option

KEYWORDS = ("none", "imagenet", "lite0")  # of --weights

MOST_EPOCHS = 10**6


@dataclass(frozen=True)
class TrainingOptions(Settings):
    """What the user asked for; None leaves the choice to the preset."""

    preset: str = option(
        "auto",
        "auto, the paper's own rule or recipes, or its code's.",
        NETWORK,
        choices=("auto", "paper", "cifar", "cifar-code", "clothing1m"),
    )
    backbone: str | None = option(
        None,
        "lite0, timm/NAME, or resnetN: 8, 20, 32, 56 for small images; 18, 34, 50, 101, 152.",
        NETWORK,
        metavar="NAME",
    )
    weights: str | None = option(
        None,
        "Initial weights: none, imagenet, lite0, timm/NAME or a file. Default: lite0 without a GPU.",
        NETWORK,
        metavar="NAME|FILE",
    )
    freeze: bool | None = option(
        None, "Train linear heads on frozen features, or the whole network.", NETWORK, flags=("--freeze/--no-freeze",)
    )
    compare_heads: bool | None = option(
        None,
        "Train heads beside the network, and let labels kept out of both decide. Default: on a GPU.",
        NETWORK,
        flags=("--compare-heads/--no-compare-heads",),
    )
    image_size: int | None = option(
        None, "Side of the training images in pixels.", NETWORK, minimum=16, maximum=1024, metavar="PX"
    )
    seed: int = option(0, "Seed of all random numbers.", TRAINING, minimum=0, maximum=2**63 - 1)
    epochs: int | None = option(None, "Epochs, at most.", TRAINING, minimum=2, maximum=MOST_EPOCHS)
    batch_size: int | None = option(None, "Batch size, over all processes.", TRAINING, minimum=2, maximum=10**6)
    scale_batch: bool = option(
        False, "Let the batch grow with the rows, so that an epoch has 200 steps; the learning rate follows.", TRAINING
    )
    lr: float | None = option(None, "Learning rate.", TRAINING, above=0.0, maximum=1e38)
    beta: float | None = option(None, "Weight of the confidence regularizer.", TRAINING, minimum=0.0, maximum=1e6)
    warmup_epochs: int | None = option(
        None,
        "Epochs of plain cross-entropy. Default: until held-out agreement levels off.",
        TRAINING,
        minimum=0,
        maximum=MOST_EPOCHS,
    )
    settle_epochs: int | None = option(
        None,
        "Epochs of cross-entropy before the snapshot that the verdict uses; 0: none.",
        TRAINING,
        minimum=0,
        maximum=MOST_EPOCHS,
    )
    ramp_epochs: int | None = option(None, "Epochs over which beta rises.", TRAINING, minimum=0, maximum=MOST_EPOCHS)
    sieve_start: int | None = option(
        None, "First epoch that trains on kept rows only.", TRAINING, minimum=1, maximum=MOST_EPOCHS, metavar="EPOCH"
    )
    sieve_eps: float | None = option(
        None, "Log floor of the verdict; larger flags more.", TRAINING, above=0.0, maximum=1.0, metavar="EPS"
    )
    loop_eps: float | None = option(
        None,
        "Log floor of the sieve in the loop. Default: from 1e-3 to 1e-8.",
        TRAINING,
        above=0.0,
        maximum=1.0,
        metavar="EPS",
    )
    flip: bool | None = option(
        None, "Mirror images. Default: tested on held-out rows.", TRAINING, flags=("--flip/--no-flip",)
    )
    mixup: float | None = option(
        None,
        "Mix pairs of kept images, by Beta(ALPHA, ALPHA); 0: none.",
        TRAINING,
        minimum=0,
        maximum=100,
        metavar="ALPHA",
    )
    balanced: bool | None = option(
        None, "Draw all classes equally often.", TRAINING, flags=("--balanced/--no-balanced",)
    )
    epoch_steps: int | None = option(
        None, "Batches per epoch. Default: every row once.", TRAINING, minimum=1, maximum=10**9
    )
    score_pass: str | None = option(
        None,
        "How the sieve scores rows. eval, the default: all, after each epoch; train: from the augmented batches, for "
        "the next epoch; step: from the batch, for the same step. The verdict comes from an eval pass.",
        TRAINING,
        choices=("eval", "train", "step"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is not None and (not self.weights or _looks_like_a_keyword(self.weights)):
            raise UsageError(
                f"--weights {self.weights!r}: empty, or a file with the name of a keyword.",
                "Rename it, or pass a keyword.",
            )
        if not self.freeze:
            return
        if self.preset != "auto":
            raise UsageError(f"--freeze: --preset {self.preset} trains the whole network.", "Leave one of them out.")
        if self.weights == "none":
            raise UsageError(
                "--freeze with --weights none: there are no pretrained weights to freeze.",
                "Choose lite0, imagenet or a file.",
            )
        if self.mixup or self.balanced or self.epoch_steps:
            raise UsageError("--freeze: does not support --mixup, --balanced or --epoch-steps.", "Leave them out.")
        if self.score_pass not in (None, "eval") or self.settle_epochs is not None:
            raise UsageError("--freeze: does not support --score-pass or --settle-epochs.", "Leave them out.")


def _looks_like_a_keyword(weights: str) -> bool:
    """Return True for a file called `none`, `imagenet` or `lite0`: later commands store only its name."""
    return Path(weights).name in KEYWORDS and Path(weights).name != weights


def deterministic_option() -> Any:
    """Return the field `deterministic`, the same in every command."""
    return option(False, "On a GPU: the same bits for the same seed, also after a resume; slower.", MACHINE)


def device_option() -> Any:
    """Return the field `device`, the same in every command."""
    return option("auto", "Device.", MACHINE, choices=("auto", "cpu", "cuda", "mps"), shared=True)
