"""Write an index as a table: new labels, optionally the true ones, and every other column as it was."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.core.errors import InputError, OutputError, UsageError
from noisesieve.core.files import atomic_write
from noisesieve.core.parquet_file import TooLarge, read_row_groups
from noisesieve.core.records import Index
from noisesieve.core.text import carried_name, csv_line, escape_name
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.table import TABLE_SUFFIXES


def table_kind(index: Index, source: SourceSettings, out: Path) -> str:
    """Return the format of `out`. Refused if it cannot contain embedded images, or is the dataset itself."""
    kind = TABLE_SUFFIXES.get(out.suffix.lower())
    if kind is None:
        raise UsageError(f"{out}: not a table format.", f"Choose a name that ends in {', '.join(TABLE_SUFFIXES)}.")
    if _is_embedded(index) and kind != index.kind:
        raise UsageError(
            f"{out}: the images are embedded, so the table stays {index.kind}.",
            f"Choose a name that ends in {next(end for end, name in TABLE_SUFFIXES.items() if name == index.kind)}.",
        )
    if out.exists() and out.samefile(source.path):
        raise OutputError(f"{out}: is the dataset itself.", "Choose another name with -o.")
    return kind


def write_index(
    index: Index, source: SourceSettings, out: Path, *, labels: list[str], truth: list[str] | None = None
) -> Path | None:
    """Write `path`, `label`, `true_label` and the user's other columns. Returns the --root to read it with, or None.

    Paths are relative to the new table if the images are below it, else to the dataset's root. Embedded images stay
    embedded, in their format.
    """
    with atomic_write(out) as file:
        return fill_table(index, source, out, file, labels=labels, truth=truth)


def fill_table(
    index: Index,
    source: SourceSettings,
    out: Path,
    file: IO[bytes],
    *,
    labels: list[str],
    truth: list[str] | None = None,
    marks: dict[str, list[str]] | None = None,
) -> Path | None:
    """Do the same into an open file that will become `out`; `marks` are further columns."""
    kind = table_kind(index, source, out)
    ours = {"label": labels} if truth is None else {"label": labels, "true_label": truth}
    ours |= marks or {}
    if _is_embedded(index):
        new = _beside(index, source, ours)
        (_copy_parquet if kind == "parquet" else _copy_jsonl)(index, new, file)
        return None
    paths, root = _paths(index, out)
    new = _beside(index, source, {"path": paths, **ours})
    if kind == "parquet":
        pq.write_table(new, file, compression="zstd")
    elif kind == "jsonl":
        file.writelines(_line(row) for row in new.to_pylist())
    else:
        _write_delimited(new, file, "," if kind == "csv" else "\t")
    return root


def _is_embedded(index: Index) -> bool:
    return index.locate(0).column is not None


def _paths(index: Index, out: Path) -> tuple[list[str], Path | None]:
    """Return the path of every row for the new table, and the root they start from; None: the table's folder."""
    given = [path or "" for path in index.paths]
    # Without resolving links: a linked dataset beside the table counts as below it.
    folder, root = Path(os.path.abspath(out)).parent, Path(os.path.abspath(index.root))
    if not root.is_relative_to(folder):
        return given, index.root
    prefix = escape_name(root.relative_to(folder).as_posix())
    return (given if prefix == "." else [path if os.path.isabs(path) else f"{prefix}/{path}" for path in given]), None


def _beside(index: Index, source: SourceSettings, ours: dict[str, list[str]]) -> pa.Table:
    """Return our columns, then the user's; one of the user's with the same name gets the prefix `user_`."""
    columns: dict[str, Any] = {name: pa.array(values, pa.string()) for name, values in ours.items()}
    if index.splits is not None:
        columns["split"] = pa.array(index.splits, pa.string())
    if source.id_column is not None:
        columns.setdefault(source.id_column, pa.array(index.ids, pa.string()))
    if index.carried is not None:
        for name, values in zip(index.carried.column_names, index.carried.columns, strict=True):
            columns[carried_name(name, columns)] = values
    return pa.table(columns)


def _write_delimited(table: pa.Table, file: IO[bytes], separator: str) -> None:
    rows = zip(*(_texts(column) for column in table.columns), strict=True)
    for row in (tuple(table.column_names), *rows):
        file.write((csv_line(row, separator) + "\n").encode())


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """Return a column as text for CSV; lists and objects as JSON."""
    if not pa.types.is_nested(column.type):
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
        return texts
    return [None if value is None else json.dumps(value, default=str) for value in column.to_pylist()]


def _line(row: dict[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False, default=str) + "\n").encode()


def _copy_parquet(index: Index, new: pa.Table, file: IO[bytes]) -> None:
    """Copy the images block by block, with the new columns beside them."""
    location = index.locate(0)
    column = str(location.column)
    wanted = [index.locate(i).position for i in range(len(index))]  # ascending, as every index is
    writer: pq.ParquetWriter | None = None
    try:
        first = done = 0
        for batch in read_row_groups(location.file, [column]):
            until = done
            while until < len(wanted) and wanted[until] < first + len(batch):
                until += 1
            if until > done:
                images = batch.column(0).combine_chunks().take(pa.array([row - first for row in wanted[done:until]]))
                part = new.slice(done, until - done).append_column(column, images)
                writer = writer or pq.ParquetWriter(file, part.schema, compression="zstd")
                writer.write_table(part)
            first, done = first + len(batch), until
    except (pa.ArrowException, TooLarge) as error:
        raise InputError(f"{location.file}: cannot be read ({error}).", "Write it again.") from error
    finally:
        if writer is not None:
            writer.close()


def _copy_jsonl(index: Index, new: pa.Table, file: IO[bytes]) -> None:
    for row, image in zip(new.to_pylist(), _embedded_lines(index), strict=True):
        file.write(_line({**row, **image}))


def _embedded_lines(index: Index) -> Iterator[dict[str, Any]]:
    location = index.locate(0)
    with open(location.file, "rb") as lines:
        for i in range(len(index)):
            lines.seek(index.locate(i).position)
            yield {str(location.column): json.loads(lines.readline()).get(str(location.column))}
