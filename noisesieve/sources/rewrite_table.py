"""Rewrite a table with some labels changed, decided rows marked and some rows left out; all else stays as it was.

The mark is one more column: what was decided, when, for which content with which label, and by whom.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.core.csv_file import csv_separator, long_cells
from noisesieve.core.errors import InputError
from noisesieve.core.files import Json
from noisesieve.core.parquet_file import read_row_groups
from noisesieve.core.records import DECIDED_COLUMN, Index
from noisesieve.core.text import csv_line
from noisesieve.sources.parquet import hugging_face_classes
from noisesieve.sources.source_settings import SourceSettings

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class RowChange:
    """What becomes of one row of a corrected dataset. `label` None: it is left out."""

    label: str | None
    mark: str | None = None  # cell of the marks' column; None: nothing to remember


Changes = dict[int, RowChange]  # by row of the whole table


def rewrite_table(index: Index, source: SourceSettings, changes: Changes, file: IO[bytes]) -> None:
    """Copy the table of `index` (all of its rows) to `file`, with these changes."""
    REWRITERS[index.kind](index, source, changes, file)


def _delimited(index: Index, source: SourceSettings, changes: Changes, file: IO[bytes]) -> None:
    """Copy rows without a change byte by byte."""
    separator = csv_separator(source.path)
    with source.path.open("rb") as blob:
        if blob.read(3) == BOM:
            file.write(BOM)
    with source.path.open(encoding="utf-8-sig", newline="") as lines, long_cells():
        _copy_lines(lines, index, changes, file, separator)


def _copy_lines(lines: Iterable[str], index: Index, changes: Changes, file: IO[bytes], separator: str) -> None:
    chunks = _chunks(lines, index)
    head = next(chunks)
    header = next(cells for cells in csv.reader(io.StringIO(head, newline=""), delimiter=separator) if cells)
    label_cell = header.index(index.label_column)
    new = _has_marks(changes) and DECIDED_COLUMN not in header
    mark_cell = len(header) if new else header.index(DECIDED_COLUMN) if DECIDED_COLUMN in header else -1
    file.write(_longer(head, [DECIDED_COLUMN] * new, separator).encode())
    for row, chunk in enumerate(chunks):
        change = changes.get(row)
        if change is None:
            file.write((_longer(chunk, [""], separator) if new else chunk).encode())
        elif change.label is not None:
            cells = next(csv.reader(io.StringIO(chunk, newline=""), delimiter=separator, strict=True)) + [""] * new
            if change.label != index.labels[row]:
                cells[label_cell] = change.label
            if change.mark is not None:
                cells[mark_cell] = change.mark
            file.write((csv_line(cells, separator) + _ending(chunk)).encode())


def _has_marks(changes: Changes) -> bool:
    return any(change.mark is not None for change in changes.values())


def _ending(chunk: str) -> str:
    """Return the end of a row's last line, with empty lines that follow."""
    return chunk[len(chunk.rstrip("\r\n")) :]


def _longer(chunk: str, cells: list[str], separator: str) -> str:
    """Return the lines of a row with further cells at its end."""
    end = _ending(chunk)
    return chunk[: len(chunk) - len(end)] + "".join(f"{separator}{cell}" for cell in cells) + end


def _jsonl(index: Index, source: SourceSettings, changes: Changes, file: IO[bytes]) -> None:
    with source.path.open("rb") as table:
        wanted = {} if index.lines is None else {int(index.lines[row]): row for row in changes}
        for number, line in enumerate(table, start=1):
            row = wanted.get(number, -1)
            change = changes.get(row)
            if change is None:
                file.write(line)
            elif change.label is not None:
                entry: Json = json.loads(line)
                if change.label != index.labels[row]:
                    entry[index.label_column] = _as_before(entry[index.label_column], change.label, index, row)
                if change.mark is not None:
                    entry[DECIDED_COLUMN] = change.mark
                file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode())


def _as_before(old: Any, label: str, index: Index, row: int) -> Any:
    """Return a label in the type of the table's labels: numbers stay numbers."""
    if isinstance(old, str):
        return label
    try:
        return {"true": True, "false": False}[label] if isinstance(old, bool) else type(old)(label)
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{index.ids[row]}: the label {label!r} is not of type {type(old).__name__}, as the table's labels are.",
            "Choose one of the table's classes.",
        ) from error


def _parquet(index: Index, source: SourceSettings, changes: Changes, file: IO[bytes]) -> None:
    """Copy one row group at a time, since images may be embedded."""
    schema, column = pq.read_schema(source.path), index.label_column
    position = schema.get_field_index(column)
    encode = _encoder(schema, index, column)
    marked = _has_marks(changes)
    written = _with_mark_column(schema) if marked else schema
    first = 0
    with pq.ParquetWriter(file, written, compression="zstd") as writer:
        for group in read_row_groups(source.path):
            row_changes = [changes.get(first + row) for row in range(len(group))]
            new = [
                None if change is None or change.label == index.labels[first + row] else change.label
                for row, change in enumerate(row_changes)
            ]
            if any(label is not None for label in new):
                old = _plain(group.column(position).combine_chunks())
                labels = [label if label is not None else value for label, value in zip(encode(new), old, strict=True)]
                group = group.set_column(position, schema.field(position), _typed(labels, schema.field(position).type))
            if marked:
                group = _with_marks(group, row_changes)
            kept = [change is None or change.label is not None for change in row_changes]
            writer.write_table(group.filter(pa.array(kept)).replace_schema_metadata(written.metadata))
            first += len(kept)


def _with_mark_column(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the column of marks, also in Hugging Face's own description of the columns."""
    if DECIDED_COLUMN in schema.names:  # another program may have stored it as a category, or as nothing
        return schema.set(schema.get_field_index(DECIDED_COLUMN), pa.field(DECIDED_COLUMN, pa.string()))
    schema = schema.append(pa.field(DECIDED_COLUMN, pa.string()))
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])
        described["info"]["features"][DECIDED_COLUMN] = {"dtype": "string", "_type": "Value"}
    except (KeyError, ValueError, TypeError):
        return schema
    return schema.with_metadata({**schema.metadata, b"huggingface": json.dumps(described).encode()})


def _with_marks(group: pa.Table, row_changes: list[RowChange | None]) -> pa.Table:
    """Return the rows with their marks, beside those of an earlier `apply`."""
    known = DECIDED_COLUMN in group.column_names
    old = group[DECIDED_COLUMN].cast(pa.string()).to_pylist() if known else [None] * len(group)
    cells = pa.array(
        [
            before if change is None or change.mark is None else change.mark
            for before, change in zip(old, row_changes, strict=True)
        ],
        pa.string(),
    )
    if known:
        return group.set_column(group.column_names.index(DECIDED_COLUMN), DECIDED_COLUMN, cells)
    return group.append_column(DECIDED_COLUMN, cells)


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _typed(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def _encoder(schema: pa.Schema, index: Index, column: str) -> Callable[[list[str | None]], list[Any]]:
    """Return a function that encodes labels as the file stores them: text, numbers, or class numbers."""
    kind = schema.field(column).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    names = hugging_face_classes(schema).get(column)
    if names is not None and not set(index.column("labels").distinct()) <= set(names):
        names = None  # some number has no name, so the reader used the numbers as labels

    def encode(labels: list[str | None]) -> list[Any]:
        try:
            if names is not None:
                return [None if label is None else names.index(label) for label in labels]
            if pa.types.is_string_view(value):
                return list(labels)
            return pa.array(labels, pa.string()).cast(value).to_pylist()  # type: ignore[no-any-return]
        except (pa.ArrowException, ValueError) as error:
            raise InputError(
                f"Column {column!r} ({kind}) cannot contain a new label ({error}).", "Choose one of its classes."
            ) from error

    return encode


def _chunks(lines: Iterable[str], index: Index) -> Iterator[str]:
    """Yield the lines before the first row, then for every row its lines up to the next row."""
    assert index.lines is not None
    starts = iter(index.lines)
    start, chunk = next(starts, 0), list[str]()
    for number, line in enumerate(lines, start=1):
        if number == start:
            yield "".join(chunk)
            start, chunk = next(starts, 0), []
        chunk.append(line)
    yield "".join(chunk)


REWRITERS: dict[str, Callable[[Index, SourceSettings, Changes, IO[bytes]], None]] = {
    "csv": _delimited,
    "tsv": _delimited,
    "jsonl": _jsonl,
    "parquet": _parquet,
}
