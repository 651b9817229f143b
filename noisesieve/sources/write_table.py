"""Write an index as a table: new labels, optionally the true ones, and every other column as it was."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from noisesieve.core.columns import Texts
from noisesieve.core.csv_file import write_csv_rows
from noisesieve.core.errors import InputError, OutputError, UsageError
from noisesieve.core.files import atomic_write
from noisesieve.core.parquet_file import TooLarge, read_row_groups
from noisesieve.core.records import Index
from noisesieve.core.text import carried_name, escape_name
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.table import TABLE_SUFFIXES

BLOCK = 8192  # rows as Python objects at a time


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
    index: Index, source: SourceSettings, out: Path, *, labels: Texts, truth: Texts | None = None
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
    labels: Texts,
    truth: Texts | None = None,
    marks: dict[str, pa.Array] | None = None,
) -> Path | None:
    """Do the same into an open file that will become `out`; `marks` are further columns."""
    kind = table_kind(index, source, out)
    ours = {"label": labels.to_arrow()} | ({} if truth is None else {"true_label": truth.to_arrow()})
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
        file.writelines(_line(row) for batch in new.to_batches(BLOCK) for row in batch.to_pylist())
    else:
        write_csv_rows(file, [new], names=new.column_names, separator="," if kind == "csv" else "\t")
    return root


def _is_embedded(index: Index) -> bool:
    return index.locate(0).column is not None


def _paths(index: Index, out: Path) -> tuple[pa.Array, Path | None]:
    """Return the path of every row for the new table, and the root they start from; None: the table's folder."""
    given = index.column("paths").to_arrow().fill_null("")
    # Without resolving links: a linked dataset beside the table counts as below it.
    folder, root = Path(os.path.abspath(out)).parent, Path(os.path.abspath(index.root))
    if not root.is_relative_to(folder):
        return given, index.root
    prefix = escape_name(root.relative_to(folder).as_posix())
    if prefix == ".":
        return given, None
    below = pc.binary_join_element_wise(prefix, given, "/")
    absolute = pa.array(np.fromiter(map(os.path.isabs, given.to_pylist()), dtype=np.bool_, count=len(given)))
    return pc.if_else(absolute, given, below), None


def _beside(index: Index, source: SourceSettings, ours: dict[str, pa.Array]) -> pa.Table:
    """Return our columns, then the user's; one of the user's with the same name gets the prefix `user_`."""
    columns: dict[str, Any] = dict(ours)
    if index.splits is not None:
        columns["split"] = index.column("splits").to_arrow()
    if source.id_column is not None:
        columns.setdefault(source.id_column, index.column("ids").to_arrow())
    if index.carried is not None:
        for name, values in zip(index.carried.column_names, index.carried.columns, strict=True):
            columns[carried_name(name, columns)] = values
    return pa.table(columns)


def _line(row: dict[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False, default=str) + "\n").encode()


def _copy_parquet(index: Index, new: pa.Table, file: IO[bytes]) -> None:
    """Copy the images block by block, with the new columns beside them."""
    location = index.locate(0)
    column = str(location.column)
    count = len(index)
    wanted = np.fromiter((index.locate(i).position for i in range(count)), dtype=np.int64, count=count)  # ascending
    writer: pq.ParquetWriter | None = None
    try:
        first = done = 0
        for batch in read_row_groups(location.file, [column]):
            until = int(np.searchsorted(wanted, first + len(batch)))
            if until > done:
                images = batch.column(0).combine_chunks().take(pa.array(wanted[done:until] - first))
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
    rows = (row for batch in new.to_batches(BLOCK) for row in batch.to_pylist())
    for row, image in zip(rows, _embedded_lines(index), strict=True):
        file.write(_line({**row, **image}))


def _embedded_lines(index: Index) -> Iterator[dict[str, Any]]:
    location = index.locate(0)
    with open(location.file, "rb") as lines:
        for i in range(len(index)):
            lines.seek(index.locate(i).position)
            yield {str(location.column): json.loads(lines.readline()).get(str(location.column))}
