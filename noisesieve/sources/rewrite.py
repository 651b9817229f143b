"""A table again with some labels changed and some rows left out; everything else stays as it was written."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from noisesieve.errors import InputError
from noisesieve.records import Index
from noisesieve.settings import SourceSettings
from noisesieve.sources.delimited import separator

BLOCK = 1024  # rows of a Parquet file in memory at a time: images may be embedded
Changes = dict[int, str | None]  # row of the whole table → its new label; None: left out


def rewrite(index: Index, source: SourceSettings, changes: Changes, file: IO[bytes]) -> None:
    """Copy the table of `index` (all of its rows) into `file`, with these changes."""
    REWRITERS[index.kind](index, source, changes, file)


def _delimited(index: Index, source: SourceSettings, changes: Changes, file: IO[bytes]) -> None:
    """Rows without a change are copied as they stand, quotes and all."""
    between = separator(source.path)

    def change(row: str, header: list[str], label: str) -> str:
        cells = next(csv.reader(io.StringIO(row, newline=""), delimiter=between, strict=True))
        cells[header.index(source.label_column)] = label
        ending = row[len(row.rstrip("\r\n")) :]
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=between, lineterminator=ending).writerow(cells)
        return text.getvalue()

    with source.path.open(encoding="utf-8", newline="") as table:
        lines = list(table)
    head, chunks = _chunks(lines, index)
    header = next(cells for cells in csv.reader(head, delimiter=between) if cells)
    header[0] = header[0].removeprefix("\ufeff")
    file.write("".join(head).encode())
    for row, chunk in enumerate(chunks):
        if row not in changes:
            file.write(chunk.encode())
        elif (label := changes[row]) is not None:
            file.write(change(chunk, header, label).encode())


def _jsonl(index: Index, source: SourceSettings, changes: Changes, file: IO[bytes]) -> None:
    with source.path.open("rb") as table:
        wanted = {} if index.lines is None else {line: row for row, line in enumerate(index.lines.tolist())}
        for number, line in enumerate(table, start=1):
            row = wanted.get(number, -1)
            if row not in changes:
                file.write(line)
            elif (label := changes[row]) is not None:
                entry: dict[str, Any] = json.loads(line)
                entry[source.label_column] = _as_before(entry[source.label_column], label, index, row)
                file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode())


def _as_before(old: Any, label: str, index: Index, row: int) -> Any:
    """A label in the type that the table has: numbers stay numbers."""
    if isinstance(old, str):
        return label
    try:
        return int(label) if isinstance(old, int) and not isinstance(old, bool) else type(old)(label)
    except ValueError as error:
        raise InputError(
            f"{index.ids[row]}: the label {label!r} is no {type(old).__name__}, as the table's labels are.",
            "Decide for one of the table's classes.",
        ) from error


def _parquet(index: Index, source: SourceSettings, changes: Changes, file: IO[bytes]) -> None:
    whole = pq.ParquetFile(source.path)
    schema, place = whole.schema_arrow, whole.schema_arrow.get_field_index(source.label_column)
    encode = _encoder(schema, source.label_column)
    first = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in whole.iter_batches(BLOCK):
            rows = range(first, first + len(batch))
            labels = batch.column(place)
            if any(row in changes for row in rows):
                new = encode([changes.get(row) for row in rows])
                changed = pa.array(np.array([changes.get(row) is not None for row in rows]))
                labels = pa.chunked_array([pc.if_else(changed, new, _plain(labels))]).combine_chunks()
                labels = labels.cast(schema.field(place).type)
            kept = pa.array(np.array([row not in changes or changes[row] is not None for row in rows]))
            batch = batch.set_column(place, schema.field(place), labels).filter(kept)
            writer.write_batch(batch)
            first += len(rows)


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _encoder(schema: pa.Schema, column: str) -> Callable[[list[str | None]], pa.Array]:
    """Labels as this file stores them: text, numbers, or Hugging Face's numbers of named classes."""
    kind = schema.field(column).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    names: list[str] | None = None
    try:
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]
        if feature["_type"] == "ClassLabel" and pa.types.is_integer(value):
            names = feature["names"]
    except (KeyError, ValueError, TypeError):
        pass

    def encode(labels: list[str | None]) -> pa.Array:
        try:
            if names is not None:
                return pa.array([None if label is None else names.index(label) for label in labels], value)
            return pa.array(labels, pa.string()).cast(value)
        except (pa.ArrowException, ValueError) as error:
            raise InputError(
                f"Column {column!r} ({kind}) cannot hold a new label ({error}).", "Decide for one of its classes."
            ) from error

    return encode


def _chunks(lines: list[str], index: Index) -> tuple[list[str], list[str]]:
    """The lines before the first row, and every row with the lines up to the next one."""
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
