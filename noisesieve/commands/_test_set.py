"""A test set: rows with right labels that no training uses, decoded as the model needs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from noisesieve.commands._dataset import warn_of_unreadable
from noisesieve.core.errors import InputError
from noisesieve.core.progress import Session
from noisesieve.core.records import FileFacts, Index
from noisesieve.pixels.decoder import Decoder
from noisesieve.retrain.data import LabelledTestSet
from noisesieve.sources.containers import read_index
from noisesieve.sources.source_settings import SourceSettings


def read_test_set(
    source: SourceSettings, classes: list[str], size: int, decoder: Decoder, session: Session
) -> tuple[Index, FileFacts]:
    """Return the rows of a test set whose class the model has; the others are left out with a warning."""
    index, known = read_index(source, min_classes=1), set(classes)
    part = index.take(np.array([i for i, label in enumerate(index.labels) if label in known], dtype=np.int64))
    if len(part) == 0:
        raise InputError(f"{index.root}: no label of the test set is a class of the model.", "Is its column right?")
    if len(part) < len(index):
        session.warn(f"{len(index) - len(part):,} test rows have labels that are not classes of the model: left out.")
    return part, decoder.read(part, lambda _: size)


def decode_test_set(
    test: tuple[Index, FileFacts],
    classes: list[str],
    size: int,
    decoder: Decoder,
    session: Session,
    *,
    scratch: Path,
) -> LabelledTestSet:
    """Decode the rows of `read_test_set` at the model's image size."""
    index, file_facts = test
    decoded = decoder.decode(index, file_facts, size=size, scratch=scratch)
    warn_of_unreadable(index, decoded.file_facts, session)
    if len(decoded.rows) == 0:
        raise InputError(f"{index.root}: no image of the test set can be read.", "Is its root right?")
    codes = index.column("labels").codes(classes)[decoded.rows]
    return LabelledTestSet(decoded.pixels, torch.from_numpy(codes))
