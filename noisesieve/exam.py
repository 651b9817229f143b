"""A test set: pictures with right labels, never learnt from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from noisesieve import pixels, report, sources
from noisesieve.dataset import report_unreadable
from noisesieve.errors import InputError
from noisesieve.records import Index, Looks
from noisesieve.retrain.loop import Exam
from noisesieve.settings import PixelSettings, SourceSettings
from noisesieve.watch import Watcher


def test_set(
    source: SourceSettings, classes: list[str], settings: PixelSettings, watcher: Watcher, pause: Callable[[], None]
) -> tuple[Index, Looks]:
    """The rows of a test set whose classes the model knows; others are left out, and it is said."""
    index, known = sources.read(source, least_classes=1), set(classes)
    part = index.take(np.array([i for i, label in enumerate(index.labels) if label in known], dtype=np.int64))
    if len(part) == 0:
        raise InputError(f"{index.root}: no label of the test set is a class of the model.", "Is its column right?")
    if len(part) < len(index):
        watcher.warn(f"{len(index) - len(part):,} test rows have labels that the model does not know: left out.")
    return part, pixels.look(part, settings, watcher, pause=pause)


def read_exam(
    index: Index,
    looks: Looks,
    classes: list[str],
    size: int,
    settings: PixelSettings,
    watcher: Watcher,
    *,
    scratch: Path,
    pause: Callable[[], None],
) -> Exam:
    """A test set at the model's size."""
    decoded = pixels.decode(index, looks, settings, watcher, size=size, scratch=scratch, pause=pause)
    report_unreadable(index, decoded.looks, watcher)
    if len(decoded.rows) == 0:
        raise InputError(f"{index.root}: no image of the test set can be read.", "Is its root right?")
    codes = report.class_codes([index.labels[row] for row in decoded.rows.tolist()], classes)
    return Exam(decoded.pixels, torch.from_numpy(codes))
