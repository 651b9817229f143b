"""Room 1, INDEX: path → Index. A new format is one file here and one line in SOURCES."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.publish import finish_publishing, sidecar_names
from noisesieve.core.records import Index, Ints
from noisesieve.core.settings import SourceSettings
from noisesieve.sources import delimited, folder, jsonl, parquet
from noisesieve.sources.table import KINDS

SOURCES: dict[str, Callable[[SourceSettings], Index]] = {
    "folder": folder.read,
    "csv": delimited.read_csv,
    "tsv": delimited.read_tsv,
    "jsonl": jsonl.read,
    "parquet": parquet.read,
}


def read(settings: SourceSettings, *, least_classes: int = 2) -> Index:
    """Index a dataset in a natural, stable order. A scan needs two classes; `check` with a saved model needs one."""
    return narrow(read_all(settings), settings, least_classes=least_classes)


def read_all(settings: SourceSettings) -> Index:
    """Index every row of a dataset, ignoring --split and --limit."""
    finish_publishing(settings.path, sidecar_names(settings.path))  # an `apply` that was killed
    return SOURCES[kind_of(settings.path)](settings)


def narrow(index: Index, settings: SourceSettings, *, least_classes: int = 2) -> Index:
    """Return the rows of --split and --limit."""
    if settings.split is not None:
        index = _one_split(index, settings.split)
    if len(index) == 0:
        raise InputError(f"{settings.path}: the table has no rows.", "List one image per row, with its label.")
    if settings.limit is not None:
        index = index.take(stratified(index.labels, settings.limit, seed=settings.limit_seed))
    if len(set(index.labels)) < least_classes:
        raise InputError(
            f"{settings.path}: every row has the label {index.labels[0]!r}; a scan needs at least two classes.",
            folder.one_class_hint(settings.path) if index.kind == "folder" else "Is --label-column right?",
        )
    return index


def kind_of(path: Path) -> str:
    """Return the key of SOURCES that reads this path."""
    if path.is_dir():
        return "folder"
    if not path.exists():
        raise InputError(f"{path}: no such file or folder.", "Check the path.")
    suffix = path.suffix.lower()
    if suffix == ".json":
        jsonl.refuse_json(path)
    if suffix not in KINDS:
        raise InputError(
            f"{path}: not a dataset that noisesieve reads.",
            f"Give an image folder, or a table that ends in {', '.join(KINDS)}.",
        )
    return KINDS[suffix]


def stratified(labels: list[str], limit: int, *, seed: int) -> Ints:
    """Return `limit` rows in index order, stratified by class, with at least one row per class if possible."""
    if limit < 1:
        raise UsageError("--limit must be at least 1.")
    if limit >= len(labels):
        return np.arange(len(labels), dtype=np.int64)
    rng = np.random.default_rng(seed)
    _, codes, counts = np.unique(np.array(labels, dtype=object), return_inverse=True, return_counts=True)
    quota = counts * (limit / len(labels))
    share = np.maximum(np.floor(quota).astype(np.int64), 1 if limit >= len(counts) else 0)
    while share.sum() != limit:  # distribute the rounding errors by largest remainder
        step = 1 if share.sum() < limit else -1
        room = (share < counts) if step > 0 else (share > 1 if limit >= len(counts) else share > 0)
        gain = np.where(room, step * (quota - share), -np.inf)
        share[int(gain.argmax())] += step
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
    starts = np.cumsum(counts) - counts
    position_in_class = np.arange(len(labels)) - np.repeat(starts, counts)
    return np.sort(by_class[position_in_class < np.repeat(share, counts)]).astype(np.int64)


def _one_split(index: Index, split: str) -> Index:
    if index.splits is None:
        raise UsageError(f"--split {split}: this dataset has no splits.", "Leave the option out.")
    rows = np.flatnonzero(np.array([name == split for name in index.splits]))
    if len(rows) == 0:
        raise UsageError(f"--split {split}: no such split.", f"Choose {', '.join(sorted(set(index.splits)))}.")
    return index.take(rows.astype(np.int64))
