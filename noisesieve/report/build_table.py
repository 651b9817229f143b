"""Verdicts → the report's table. Rows that were not scored are null in every score column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from noisesieve.core.errors import UsageError
from noisesieve.core.records import Bools, FileFacts, Floats, Index, Ints, Scores, Verdicts
from noisesieve.core.text import carried_name
from noisesieve.report.schema import COLUMNS, LOW_EVIDENCE, SPLIT, TOP, report_schema


@dataclass(frozen=True)
class DecidedRow:
    """What a person decided about one row. `label` None: the image is unusable."""

    label: str | None
    decision: str  # keep, accept, relabel or unusable
    by: str = ""
    at: str = ""
    applied: bool = False  # `apply` has written the label into the dataset since: it says nothing about the model


Decided = dict[int, DecidedRow]  # by row of an index


@dataclass(frozen=True)
class ReportInputs:
    """Everything a report is built from. Scores and verdicts belong to `rows`, the scored rows of the index."""

    index: Index
    file_facts: FileFacts
    rows: Ints  # (N,)
    classes: list[str]
    codes: Ints  # (N,) the given label of each scored row, as position in `classes`
    scores: Scores
    verdicts: Verdicts
    # Over all rows of the index:
    unknown: Bools | None = None  # readable, but of a class that the model does not have
    in_training: Bools | None = None  # its content was in the training data; None: true for every scored row
    waived: Bools | None = None
    decided: Decided = field(default_factory=dict)


def build_table(inputs: ReportInputs) -> pa.Table:
    """Return the report's table, one row per image, in index order."""
    index, verdicts, probs = inputs.index, inputs.verdicts, inputs.scores.probs
    total = len(index)
    expander = _RowExpander(inputs.rows, total)
    top = np.concatenate([np.argsort(-part, axis=1, kind="stable")[:, :TOP] for part in _blocks(probs)])  # (N, 5)
    top_probs = np.take_along_axis(probs, top, axis=1).astype(np.float32)
    predicted = top[:, 0]
    names = pa.array(inputs.classes, pa.string())
    counts = np.bincount(inputs.codes, minlength=len(inputs.classes))
    columns: dict[str, Any] = {
        "row": np.arange(total),
        "id": index.ids,
        "path": index.paths,
        "label": index.labels,
        "loss": expander.numbers(verdicts.loss),
        "regularizer": expander.numbers(verdicts.regularizer),
        "regularized_loss": expander.numbers(verdicts.regularized_loss),
        "threshold": expander.numbers(verdicts.threshold),
        "margin": expander.numbers(verdicts.margin),
        "verdict": expander.verdict(verdicts.corrupted, inputs.unknown),
        "paper_verdict": expander.verdict(verdicts.paper_corrupted, inputs.unknown),
        "rank": expander.numbers(verdicts.rank),
        "predicted_label": expander.words(names, predicted),
        "predicted_probability": expander.numbers(top_probs[:, 0]),
        "label_probability": expander.numbers(verdicts.label_probability.astype(np.float32)),
        "suggested_label": expander.words(names, predicted, verdicts.corrupted & (predicted != inputs.codes)),
        "corruption_probability": expander.numbers(verdicts.corruption_probability.astype(np.float32)),
        "flagged_epochs": pa.nulls(total, pa.float32())
        if inputs.scores.flagged_epochs is None
        else expander.numbers(inputs.scores.flagged_epochs.astype(np.float32)),
        "low_evidence": expander.flags(counts[inputs.codes] < LOW_EVIDENCE),
        "waived": np.zeros(total, dtype=np.bool_) if inputs.waived is None else inputs.waived,
        "in_training": ~expander.not_scored if inputs.in_training is None else inputs.in_training,
        "source_line": pa.nulls(total, pa.int64()) if index.lines is None else index.lines,
        "status": inputs.file_facts.status,
        "sha256": inputs.file_facts.sha256,
        "top_labels": expander.lists(names.take(pa.array(top.reshape(-1))), top.shape[1]),
        "top_probabilities": expander.lists(pa.array(top_probs.reshape(-1)), top.shape[1]),
        "trusted": _trusted(inputs),
        "decided_label": _of_decided(inputs, "label"),
        "decided": _of_decided(inputs, "decision"),
        "decided_by": _of_decided(inputs, "by"),
        "decided_at": _of_decided(inputs, "at"),
    }
    arrays = [_typed(columns[name], kind) for name, kind in COLUMNS.items()]
    table = pa.table(arrays, schema=report_schema())
    return _with_users_columns(table, index)


def _trusted(inputs: ReportInputs) -> Bools:
    """Return (rows of the index,) which labels are known to be right: marked in the table, or decided by a person."""
    total = len(inputs.index)
    marked = np.zeros(total, dtype=np.bool_) if inputs.index.trusted is None else inputs.index.trusted.copy()
    marked[[row for row, decided in inputs.decided.items() if decided.label is not None]] = True
    return marked


def _of_decided(inputs: ReportInputs, name: str) -> pa.Array:
    """Return one fact of every decided row, null for the others."""
    total = len(inputs.index)
    if not inputs.decided:
        return pa.nulls(total, pa.string())
    values = {row: getattr(decided, name) or None for row, decided in inputs.decided.items()}
    return pa.array([values.get(row) for row in range(total)], pa.string())


def _blocks(probs: Floats, rows: int = 65_536) -> Iterator[Floats]:
    """Yield blocks of rows: a sorted copy of a million rows by a thousand classes would not fit in memory."""
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


class _RowExpander:
    """Expands values of the scored rows to all rows; the others are null."""

    def __init__(self, rows: Ints, total: int) -> None:
        self._total = total
        self.not_scored = np.ones(total, dtype=np.bool_)
        self.not_scored[rows] = False
        self.source = np.zeros(total, dtype=np.int64)  # position of each row among the scored rows
        self.source[rows] = np.arange(len(rows))

    def numbers(self, values: npt.NDArray[Any]) -> pa.Array:
        return pa.array(values[self.source], mask=self.not_scored)

    def flags(self, values: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        return values[self.source] & ~self.not_scored

    def words(self, names: pa.Array, codes: Ints, where: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        hidden = self.not_scored if where is None else self.not_scored | ~where[self.source]
        return names.take(pa.array(codes[self.source], mask=hidden))

    def verdict(self, corrupted: Bools, unknown: Bools | None) -> pa.Array:
        codes = np.where(self.not_scored, 2, corrupted[self.source].astype(np.int8)).astype(np.int8)
        words = ["clean", "corrupted", "unreadable"]
        if unknown is not None:
            codes[unknown] = 3
            words.append("unknown")
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(words))

    def lists(self, flat: pa.Array, width: int) -> pa.Array:
        """Return lists of `width` values; null for rows that were not scored."""
        lengths = np.where(self.not_scored, 0, width)
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
        return pa.ListArray.from_arrays(offsets, flat, mask=pa.array(self.not_scored))


def probabilities_table(inputs: ReportInputs) -> pa.Table:
    """Return the class probabilities of every row, in the order of the classes; null if it was not scored."""
    total, classes = len(inputs.index), len(inputs.classes)
    expander = _RowExpander(inputs.rows, total)
    flat = inputs.scores.probs.astype(np.float32)[expander.source].reshape(-1)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(flat), classes, mask=pa.array(expander.not_scored))
    return pa.table({"row": pa.array(np.arange(total)), "probabilities": lists})


def class_codes(labels: Sequence[str], classes: Sequence[str]) -> Ints:
    """Return labels as positions in `classes`."""
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number[label] for label in labels], dtype=np.int64)


def require_column(index: Index, column: str | None, option: str = "--group-by") -> None:
    """Refuse an unknown column of an option before anything is decoded."""
    own = [] if index.carried is None else index.carried.column_names
    ours = {*COLUMNS, *(["split"] if index.splits is not None else [])}
    known = {*ours, *own, *(carried_name(name, ours) for name in own)}
    if column in own and index.carried is not None and pa.types.is_nested(index.carried[column].type):
        raise UsageError(f"{option} {column}: its cells are lists or objects.", "Choose another column.")
    if column is not None and column not in known:
        raise UsageError(f"{option} {column}: no such column.", f"Choose one of: {', '.join(own) or 'none'}.")


def column_codes(index: Index, column: str) -> Ints:
    """Return the number of each row's value in a column of the user's. Every empty cell is a value of its own."""
    own = [] if index.carried is None else index.carried.column_names
    if column not in own or index.carried is None:
        raise UsageError(f"--keep-together {column}: no such column.", f"Choose one of: {', '.join(own) or 'none'}.")
    coded = index.carried[column].combine_chunks()
    if not pa.types.is_dictionary(coded.type):
        coded = coded.dictionary_encode()
    codes: Ints = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    empty = codes < 0
    codes[empty] = len(coded.dictionary) + np.arange(int(empty.sum()))
    return codes
