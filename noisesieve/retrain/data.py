"""The data of a retraining and of its test set."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from noisesieve.core.records import Pixels
from noisesieve.learn.networks.pretrained import Statistics


@dataclass(frozen=True)
class RetrainData:
    """The readable rows to train on."""

    pixels: Pixels
    labels: Tensor  # (N,) int64; used for clean rows only
    clean: Tensor  # rows trained on with their label
    corrupted: Tensor  # rows trained on without a label
    classes: int
    statistics: Statistics | None = None  # mean and deviation that the initial weights need; None: from these images
    initial: dict[str, Tensor] | None = None  # initial weights


@dataclass(frozen=True)
class LabelledTestSet:
    """Images with right labels that are never trained on."""

    pixels: Pixels
    labels: Tensor
