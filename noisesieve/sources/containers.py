"""The containers by name, and the reading of a dataset: all its rows, or those of --split and --limit."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from noisesieve.core.columns import Texts
from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.memory import release_memory
from noisesieve.core.publish import unfinished_publication
from noisesieve.core.records import Floats, Index, Ints
from noisesieve.sources import delimited, folder, jsonl, parquet
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.table import TABLE_SUFFIXES


@dataclass(frozen=True)
class Source:
    """A kind of container: which paths it reads, and how."""

    read: Callable[[SourceSettings], Index]
    accepts: Callable[[Path], bool]  # of an existing folder or regular file; the first source that accepts it reads it


def _is_table(kind: str) -> Callable[[Path], bool]:
    return lambda path: path.is_file() and TABLE_SUFFIXES.get(path.suffix.lower()) == kind


SOURCES: dict[str, Source] = {
    "csv": Source(delimited.read_csv, _is_table("csv")),
    "tsv": Source(delimited.read_tsv, _is_table("tsv")),
    "jsonl": Source(jsonl.read, _is_table("jsonl")),
    "parquet": Source(parquet.read, _is_table("parquet")),
    "folder": Source(folder.read, Path.is_dir),
}


def read_index(settings: SourceSettings, *, min_classes: int = 2) -> Index:
    """Index a dataset in a natural, stable order. A scan needs two classes; `check` with a saved model needs one."""
    return narrow(read_whole(settings), settings, min_classes=min_classes)


def read_whole(settings: SourceSettings) -> Index:
    """Index every row of a dataset, ignoring --split and --limit."""
    kind = kind_of(settings.path)
    index = SOURCES[kind].read(settings)
    release_memory()
    if (left := unfinished_publication(settings.path)) is None:
        return index
    note = f"{left} is of an `apply` that was stopped, and is not looked at: that command finishes it."
    return replace(index, notes=[*index.notes, note])


def narrow(index: Index, settings: SourceSettings, *, min_classes: int = 2) -> Index:
    """Return the rows of --split and --limit."""
    if settings.split is not None:
        index = _one_split(index, settings.split)
    if len(index) == 0:
        raise InputError(f"{settings.path}: the table has no rows.", "List one image per row, with its label.")
    if settings.limit is not None:
        index = index.take(stratified(index.column("labels"), settings.limit, seed=settings.limit_seed))
    if len(index.column("labels").distinct()) < min_classes:
        raise InputError(
            f"{settings.path}: every row has the label {index.labels[0]!r}; a scan needs at least two classes.",
            folder.one_class_hint(settings.path) if index.kind == "folder" else "Is --label-column right?",
        )
    return index


def kind_of(path: Path) -> str:
    """Return the key of SOURCES that reads this path."""
    if not path.exists():
        if address := re.match(r"([a-z][a-z0-9+.-]+):/(?=[^/])", str(path)):
            url = f"{address[1]}://{str(path)[address.end() :]}"
            raise InputError(f"{url}: an address, not a file.", "Download the dataset, and give its path.")
        raise InputError(f"{path}: no such file or folder.", "Check the path.")
    if not path.is_file() and not path.is_dir():
        raise InputError(f"{path}: not a regular file.", "Give a folder, or a table.")
    if kind := next((name for name, source in SOURCES.items() if source.accepts(path)), None):
        return kind
    if path.suffix.lower() == ".json":
        jsonl.refuse_json(path)
    raise InputError(
        f"{path}: not a dataset that noisesieve reads.",
        f"Give an image folder, or a table that ends in {', '.join(TABLE_SUFFIXES)}.",
    )


def stratified(labels: Texts, limit: int, *, seed: int) -> Ints:
    """Return `limit` rows in index order, stratified by class, with at least one row per class if possible."""
    if limit < 1:
        raise UsageError("--limit must be at least 1.")
    if limit >= len(labels):
        return np.arange(len(labels), dtype=np.int64)
    rng = np.random.default_rng(seed)
    codes = labels.codes(sorted(labels.distinct()))
    counts = np.bincount(codes)
    quota: Floats = (counts * (limit / len(labels))).astype(np.float64)
    floor = 1 if limit >= len(counts) else 0
    share = _rounded(quota, np.maximum(np.floor(quota).astype(np.int64), floor), counts, limit, floor=floor)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
    starts = np.cumsum(counts) - counts
    position_in_class = np.arange(len(labels)) - np.repeat(starts, counts)
    return np.sort(by_class[position_in_class < np.repeat(share, counts)]).astype(np.int64)


def _rounded(quota: Floats, share: Ints, counts: Ints, total: int, *, floor: int) -> Ints:
    """Distribute the rounding errors by largest remainder, so that the shares add up to the total."""
    step = 1 if share.sum() < total else -1
    gains = [(-step * gain, place) for place, gain in enumerate((quota - share).tolist())]
    heapq.heapify(gains)
    for _ in range(abs(int(share.sum()) - total)):
        while True:
            _, place = heapq.heappop(gains)
            if (share[place] < counts[place]) if step > 0 else (share[place] > floor):
                break
        share[place] += step
        heapq.heappush(gains, (float(-step * (quota[place] - share[place])), place))
    return share


def _one_split(index: Index, split: str) -> Index:
    if index.splits is None:
        raise UsageError(f"--split {split}: this dataset has no splits.", "Leave the option out.")
    names = index.column("splits")
    rows = np.flatnonzero(names.codes([split]) == 0)
    if len(rows) == 0:
        raise UsageError(f"--split {split}: no such split.", f"Choose {', '.join(sorted(names.distinct()))}.")
    return index.take(rows.astype(np.int64))
