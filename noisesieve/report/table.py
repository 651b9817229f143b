"""Verdicts → the report's table. Scores of readable rows are laid into all rows; the others stay null."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from noisesieve.records import Bools, Floats, Index, Ints, Looks, Scores, Verdicts
from noisesieve.report.schema import COLUMNS, LOW_EVIDENCE, SPLIT, TOP, carried_name


@dataclass(frozen=True)
class Findings:
    """Everything a report is made of. `rows` are the readable rows of the index; scores and verdicts are theirs."""

    index: Index
    looks: Looks
    rows: Ints  # (N,)
    classes: list[str]
    codes: Ints  # (N,) the given label of each readable row as a number
    scores: Scores
    verdicts: Verdicts
    unknown: Bools | None = None  # of all rows: readable, but of a class that the model does not know
    seen: Bools | None = None  # of all rows: its content was in the training data; None: every readable row's was
    waived: Bools | None = None  # of all rows


def build(found: Findings) -> pa.Table:
    """The report, one row an example, in index order."""
    index, verdicts, probs = found.index, found.verdicts, found.scores.probs
    total = len(index)
    spread = _Spread(found.rows, total)
    top = np.concatenate([np.argsort(-part, axis=1, kind="stable")[:, :TOP] for part in _blocks(probs)])  # (N, 5)
    top_probs = np.take_along_axis(probs, top, axis=1).astype(np.float32)
    predicted = top[:, 0]
    names = pa.array(found.classes, pa.string())
    counts = np.bincount(found.codes, minlength=len(found.classes))
    columns: dict[str, Any] = {
        "row": np.arange(total),
        "id": index.ids,
        "path": index.paths,
        "label": index.labels,
        "loss": spread.numbers(verdicts.loss),
        "regularizer": spread.numbers(verdicts.regularizer),
        "regularized_loss": spread.numbers(verdicts.regularized_loss),
        "threshold": spread.numbers(verdicts.threshold),
        "margin": spread.numbers(verdicts.margin),
        "verdict": spread.verdict(verdicts.corrupted, found.unknown),
        "paper_verdict": spread.verdict(verdicts.paper_corrupted, found.unknown),
        "rank": spread.numbers(verdicts.rank),
        "predicted_label": spread.words(names, predicted),
        "predicted_probability": spread.numbers(top_probs[:, 0]),
        "label_probability": spread.numbers(verdicts.label_probability.astype(np.float32)),
        "suggested_label": spread.words(names, predicted, verdicts.corrupted & (predicted != found.codes)),
        "corruption_probability": spread.numbers(verdicts.corruption_probability.astype(np.float32)),
        "flagged_epochs": pa.nulls(total, pa.float32())
        if found.scores.flagged_epochs is None
        else spread.numbers(found.scores.flagged_epochs.astype(np.float32)),
        "low_evidence": spread.flags(counts[found.codes] < LOW_EVIDENCE),
        "waived": np.zeros(total, dtype=np.bool_) if found.waived is None else found.waived,
        "in_training": ~spread.unreadable if found.seen is None else found.seen,
        "source_line": pa.nulls(total, pa.int64()) if index.lines is None else index.lines,
        "status": found.looks.status,
        "sha256": found.looks.sha256,
        "top_labels": spread.lists(names.take(pa.array(top.reshape(-1))), top.shape[1]),
        "top_probabilities": spread.lists(pa.array(top_probs.reshape(-1)), top.shape[1]),
    }
    arrays = [_typed(columns[name], kind) for name, kind in COLUMNS.items()]
    table = pa.table(arrays, schema=pa.schema(list(COLUMNS.items())))
    return _with_users_columns(table, index)


def _blocks(probs: Floats, rows: int = 65_536) -> Iterator[Floats]:
    """A sorted copy of a million rows by a thousand classes would not fit beside them."""
    for start in range(0, max(1, len(probs)), rows):
        yield probs[start : start + rows]


def _typed(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(kind)
    return pa.array(values, kind)


def _with_users_columns(table: pa.Table, index: Index) -> pa.Table:
    taken = set(table.column_names) | {SPLIT}
    if index.splits is not None:
        table = table.append_column(SPLIT, pa.array(index.splits, pa.string()))
    if index.carried is not None:
        for name in index.carried.column_names:
            new = carried_name(name, taken)
            taken.add(new)
            table = table.append_column(new, index.carried[name])
    return table


class _Spread:
    """Lays values of the readable rows into all rows; null elsewhere."""

    def __init__(self, rows: Ints, total: int) -> None:
        self._total = total
        self.unreadable = np.ones(total, dtype=np.bool_)
        self.unreadable[rows] = False
        self.source = np.zeros(total, dtype=np.int64)  # where in the readable rows each row finds its value
        self.source[rows] = np.arange(len(rows))

    def numbers(self, values: npt.NDArray[Any]) -> pa.Array:
        return pa.array(values[self.source], mask=self.unreadable)

    def flags(self, values: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        return values[self.source] & ~self.unreadable

    def words(self, names: pa.Array, codes: Ints, where: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        hidden = self.unreadable if where is None else self.unreadable | ~where[self.source]
        return names.take(pa.array(codes[self.source], mask=hidden))

    def verdict(self, corrupted: Bools, unknown: Bools | None) -> pa.Array:
        codes = np.where(self.unreadable, 2, corrupted[self.source].astype(np.int8)).astype(np.int8)
        words = ["clean", "corrupted", "unreadable"]
        if unknown is not None:
            codes[unknown] = 3
            words.append("unknown")
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(words))

    def lists(self, flat: pa.Array, width: int) -> pa.Array:
        """Lists of `width` values; a row that could not be read has null, and takes no values."""
        lengths = np.where(self.unreadable, 0, width)
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
        return pa.ListArray.from_arrays(offsets, flat, mask=pa.array(self.unreadable))


def probabilities_table(found: Findings) -> pa.Table:
    """Every row's class probabilities, in the order of the classes; null where the image could not be read."""
    total, classes = len(found.index), len(found.classes)
    spread = _Spread(found.rows, total)
    flat = found.scores.probs.astype(np.float32)[spread.source].reshape(-1)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(flat), classes, mask=pa.array(spread.unreadable))
    return pa.table({"row": pa.array(np.arange(total)), "probabilities": lists})


def class_codes(labels: Sequence[str], classes: Sequence[str]) -> Ints:
    """Labels as numbers, in the order of the classes."""
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number[label] for label in labels], dtype=np.int64)
