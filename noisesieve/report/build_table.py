"""Verdicts → the report's table. Rows that were not scored are null in every score column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from noisesieve.core.columns import BLOCK, Hashes, Texts
from noisesieve.core.errors import UsageError
from noisesieve.core.records import Bools, FileFacts, Index, Ints, Probabilities, Scores, Verdicts
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


BLOCK_VALUES = 2**22  # probabilities at a time
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
    return pa.concat_tables(build_blocks(inputs)).unify_dictionaries()


def build_blocks(inputs: ReportInputs) -> Iterator[pa.Table]:
    """Yield the report's table in blocks of up to BLOCK rows: all of a million rows would take half a gigabyte."""
    low_evidence = np.bincount(inputs.codes, minlength=len(inputs.classes)) < LOW_EVIDENCE
    for start in range(0, max(1, len(inputs.index)), BLOCK):
        yield _block(inputs, slice(start, min(start + BLOCK, len(inputs.index))), low_evidence)


def _block(inputs: ReportInputs, rows: slice, low_evidence: Bools) -> pa.Table:
    """Return some rows of the report. `low_evidence` is a property of classes."""
    index, facts, total = inputs.index, inputs.file_facts, rows.stop - rows.start
    expander = _RowExpander(inputs.rows, rows)
    own = expander.own
    verdicts, probs, codes = inputs.verdicts, inputs.scores.probs[own], inputs.codes[own]
    top = most_probable(probs)  # (B, 5)
    top_probs = np.take_along_axis(probs, top, axis=1)
    predicted = top[:, 0]
    names = pa.array(inputs.classes, pa.string())
    unknown = None if inputs.unknown is None else inputs.unknown[rows]
    flagged_epochs = inputs.scores.flagged_epochs
    columns: dict[str, Any] = {
        "row": np.arange(rows.start, rows.stop),
        "id": _texts(index.column("ids"), rows),
        "path": _texts(index.column("paths"), rows),
        "label": _texts(index.column("labels"), rows),
        "loss": expander.numbers(verdicts.loss[own]),
        "regularizer": expander.numbers(verdicts.regularizer[own]),
        "regularized_loss": expander.numbers(verdicts.regularized_loss[own]),
        "threshold": expander.numbers(verdicts.threshold[own]),
        "margin": expander.numbers(verdicts.margin[own]),
        "verdict": expander.verdict(verdicts.corrupted[own], unknown),
        "paper_verdict": expander.verdict(verdicts.paper_corrupted[own], unknown),
        "rank": expander.numbers(verdicts.rank[own]),
        "predicted_label": expander.words(names, predicted),
        "predicted_probability": expander.numbers(top_probs[:, 0]),
        "label_probability": expander.numbers(verdicts.label_probability[own].astype(np.float32)),
        "suggested_label": expander.words(names, predicted, verdicts.corrupted[own] & (predicted != codes)),
        "corruption_probability": expander.numbers(verdicts.corruption_probability[own].astype(np.float32)),
        "flagged_epochs": pa.nulls(total, pa.float32())
        if flagged_epochs is None
        else expander.numbers(flagged_epochs[own].astype(np.float32)),
        "low_evidence": expander.flags(low_evidence[codes]),
        "waived": np.zeros(total, dtype=np.bool_) if inputs.waived is None else inputs.waived[rows],
        "in_training": ~expander.not_scored if inputs.in_training is None else inputs.in_training[rows],
        "source_line": pa.nulls(total, pa.int64()) if index.lines is None else index.lines[rows],
        "status": _texts(Texts(facts.status), rows),
        "sha256": Hashes(facts.hashes.array[rows]).to_arrow(),
        "top_labels": expander.lists(names.take(pa.array(top.reshape(-1))), top.shape[1]),
        "top_probabilities": expander.lists(pa.array(top_probs.reshape(-1)), top.shape[1]),
        "trusted": _trusted(inputs, rows),
        "decided_label": _of_decided(inputs, "label", rows),
        "decided": _of_decided(inputs, "decision", rows),
        "decided_by": _of_decided(inputs, "by", rows),
        "decided_at": _of_decided(inputs, "at", rows),
    }
    arrays = [_typed(columns[name], kind) for name, kind in COLUMNS.items()]
    return _with_users_columns(pa.table(arrays, schema=report_schema()), index, rows)


def most_probable(probs: Probabilities) -> Ints:
    """Return the most probable classes, (N, 5) or fewer; of equally probable ones the first."""
    top = np.empty((len(probs), min(TOP, probs.shape[1])), dtype=np.int64)
    size = max(1, BLOCK_VALUES // probs.shape[1])
    for start in range(0, len(probs), size):
        left = probs[start : start + size].copy()
        rows = np.arange(len(left))
        for place in range(top.shape[1]):  # far cheaper than a sort of many classes
            found = top[start : start + size, place] = left.argmax(axis=1)
            left[rows, found] = -1.0
    return top


def _texts(column: Texts, rows: slice) -> pa.Array:
    return column.array[rows].cast(pa.string())


def _trusted(inputs: ReportInputs, rows: slice) -> Bools:
    """Return which labels are known to be right: marked in the table, or decided by a person."""
    marked = inputs.index.trusted
    known = np.zeros(rows.stop - rows.start, dtype=np.bool_) if marked is None else marked[rows].copy()
    known[[row - rows.start for row in _decided(inputs, rows) if inputs.decided[row].label is not None]] = True
    return known


def _of_decided(inputs: ReportInputs, name: str, rows: slice) -> pa.Array:
    """Return one fact of every decided row, null for the others."""
    values = np.full(rows.stop - rows.start, None, dtype=object)
    for row in _decided(inputs, rows):
        values[row - rows.start] = getattr(inputs.decided[row], name) or None
    return pa.array(values, pa.string())


def _decided(inputs: ReportInputs, rows: slice) -> list[int]:
    return [row for row in inputs.decided if rows.start <= row < rows.stop]


def _typed(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(kind)
    return pa.array(values, kind)


def _with_users_columns(table: pa.Table, index: Index, rows: slice) -> pa.Table:
    taken = set(table.column_names) | {SPLIT}
    if index.splits is not None:
        table = table.append_column(SPLIT, _texts(index.column("splits"), rows))
    if index.carried is not None:
        for name in index.carried.column_names:
            new = carried_name(name, taken)
            taken.add(new)
            table = table.append_column(new, index.carried[name].slice(rows.start, rows.stop - rows.start))
    return table


class _RowExpander:
    """Expands values of the scored rows of a block to all of its rows; the others are null."""

    def __init__(self, scored: Ints, rows: slice) -> None:
        begin, end = np.searchsorted(scored, (rows.start, rows.stop)).tolist()
        self.own = slice(begin, end)  # positions of the block's rows among the scored rows, which are ascending
        total = rows.stop - rows.start
        places = scored[self.own] - rows.start
        self.not_scored = np.ones(total, dtype=np.bool_)
        self.not_scored[places] = False
        self._source = np.zeros(total, dtype=np.int64)  # position of each row among the block's scored rows
        self._source[places] = np.arange(len(places))

    def _spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values[self._source] if len(values) else np.zeros(len(self._source), dtype=values.dtype)

    def numbers(self, values: npt.NDArray[Any]) -> pa.Array:
        return pa.array(self._spread(values), mask=self.not_scored)

    def flags(self, values: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        return self._spread(values) & ~self.not_scored

    def words(self, names: pa.Array, codes: Ints, where: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        hidden = self.not_scored if where is None else self.not_scored | ~self._spread(where)
        return names.take(pa.array(self._spread(codes), mask=hidden))

    def verdict(self, corrupted: Bools, unknown: Bools | None) -> pa.Array:
        codes = np.where(self.not_scored, 2, self._spread(corrupted).astype(np.int8)).astype(np.int8)
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

    def vectors(self, values: npt.NDArray[Any]) -> pa.Array:
        """Return fixed-size lists; null for rows that were not scored."""
        flat = pa.array(self._spread(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=pa.array(self.not_scored))


def probability_blocks(inputs: ReportInputs) -> Iterator[pa.Table]:
    """Yield the class probabilities of every row, in the order of the classes; null if it was not scored."""
    total, size = len(inputs.index), max(1, min(BLOCK, BLOCK_VALUES // len(inputs.classes)))
    for start in range(0, max(1, total), size):
        rows = slice(start, min(start + size, total))
        expander = _RowExpander(inputs.rows, rows)
        lists = expander.vectors(inputs.scores.probs[expander.own])
        yield pa.table({"row": pa.array(np.arange(rows.start, rows.stop)), "probabilities": lists})


def class_codes(labels: Sequence[str], classes: Sequence[str]) -> Ints:
    """Return labels as positions in `classes`, -1 for one that is not there."""
    return (labels if isinstance(labels, Texts) else Texts(labels)).codes(classes)


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
