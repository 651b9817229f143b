"""Rewrite a table with some labels changed and some rows left out; everything else stays as it was written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.core.csv_file import csv_separator
from noisesieve.core.errors import InputError
from noisesieve.core.files import Json
from noisesieve.core.records import Index
from noisesieve.core.settings import SourceSettings
from noisesieve.core.text import csv_line
from noisesieve.sources.parquet import class_names

BOM = b"\xef\xbb\xbf"
Changes = dict[int, str | None]  # row of the whole table → its new label; None: left out


def rewrite_table(index: Index, source: SourceSettings, changes: Changes, file: IO[bytes]) -> None:
    """Copy the table of `index` (all of its rows) to `file`, with these changes."""
    REWRITERS[index.kind](index, source, changes, file)


def _delimited(index: Index, source: SourceSettings, changes: Changes, file: IO[bytes]) -> None:
    """Copy rows without a change byte by byte."""
    separator = csv_separator(source.path)
    with source.path.open(encoding="utf-8-sig", newline="") as table:
        lines = list(table)
    if source.path.read_bytes()[:3] == BOM:
        file.write(BOM)
    head, chunks = _chunks(lines, index)
    header = next(cells for cells in csv.reader(head, delimiter=separator) if cells)
    label_cell = header.index(source.label_column)
    file.write("".join(head).encode())
    for row, chunk in enumerate(chunks):
        if row not in changes:
            file.write(chunk.encode())
        elif (label := changes[row]) is not None:
            cells = next(csv.reader(io.StringIO(chunk, newline=""), delimiter=separator, strict=True))
            cells[label_cell] = label
            ending = chunk[len(chunk.rstrip("\r\n")) :]  # including empty lines that follow
            file.write((csv_line(cells, separator) + ending).encode())


def _jsonl(index: Index, source: SourceSettings, changes: Changes, file: IO[bytes]) -> None:
    with source.path.open("rb") as table:
        wanted = {} if index.lines is None else {line: row for row, line in enumerate(index.lines.tolist())}
        for number, line in enumerate(table, start=1):
            row = wanted.get(number, -1)
            if row not in changes:
                file.write(line)
            elif (label := changes[row]) is not None:
                entry: Json = json.loads(line)
                entry[source.label_column] = _as_before(entry[source.label_column], label, index, row)
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
    whole = pq.ParquetFile(source.path)
    schema, column = whole.schema_arrow, source.label_column
    position = schema.get_field_index(column)
    encode = _encoder(schema, index, column)
    first = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for number in range(whole.num_row_groups):
            group = whole.read_row_group(number)
            new = [changes.get(first + row) for row in range(len(group))]
            kept = [first + row not in changes or label is not None for row, label in enumerate(new)]
            if any(label is not None for label in new):
                old = _plain(group.column(position).combine_chunks())
                labels = [label if label is not None else value for label, value in zip(encode(new), old, strict=True)]
                group = group.set_column(position, schema.field(position), _typed(labels, schema.field(position).type))
            writer.write_table(group.filter(pa.array(kept)))
            first += len(kept)


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
    names = class_names(schema, column)
    if names is not None and not set(index.labels) <= set(names):
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


def _chunks(lines: list[str], index: Index) -> tuple[list[str], list[str]]:
    """Return the lines before the first row, and for every row its lines up to the next row."""
    assert index.lines is not None
    starts = [line - 1 for line in index.lines.tolist()]
    ends = [*starts[1:], len(lines)]
    return lines[: starts[0]], ["".join(lines[a:b]) for a, b in zip(starts, ends, strict=True)]


REWRITERS: dict[str, Callable[[Index, SourceSettings, Changes, IO[bytes]], None]] = {
    "csv": _delimited,
    "tsv": _delimited,
    "jsonl": _jsonl,
    "parquet": _parquet,
}
