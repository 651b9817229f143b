"""A test set: rows with right labels that no training uses, decoded as the model needs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from noisesieve import pixels, sources
from noisesieve.commands._dataset import warn_of_unreadable
from noisesieve.core.errors import InputError
from noisesieve.core.progress import Session
from noisesieve.core.records import FileFacts, Index
from noisesieve.core.settings import PixelSettings, SourceSettings
from noisesieve.report import class_codes
from noisesieve.retrain.data import LabelledTestSet


def inspect_test_set(
    source: SourceSettings, classes: list[str], settings: PixelSettings, session: Session
) -> tuple[Index, FileFacts]:
    """Return the rows of a test set whose class the model has; the others are left out with a warning."""
    index, known = sources.read(source, least_classes=1), set(classes)
    part = index.take(np.array([i for i, label in enumerate(index.labels) if label in known], dtype=np.int64))
    if len(part) == 0:
        raise InputError(f"{index.root}: no label of the test set is a class of the model.", "Is its column right?")
    if len(part) < len(index):
        session.warn(f"{len(index) - len(part):,} test rows have labels that are not classes of the model: left out.")
    return part, pixels.inspect_files(part, settings, session)


def decode_test_set(
    test: tuple[Index, FileFacts],
    classes: list[str],
    size: int,
    settings: PixelSettings,
    session: Session,
    *,
    scratch: Path,
) -> LabelledTestSet:
    """Decode the rows of `inspect_test_set` at the model's image size."""
    index, file_facts = test
    decoded = pixels.decode(index, file_facts, settings, session, size=size, scratch=scratch)
    warn_of_unreadable(index, decoded.file_facts, session)
    if len(decoded.rows) == 0:
        raise InputError(f"{index.root}: no image of the test set can be read.", "Is its root right?")
    codes = class_codes([index.labels[row] for row in decoded.rows.tolist()], classes)
    return LabelledTestSet(decoded.pixels, torch.from_numpy(codes))
