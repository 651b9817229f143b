"""Read a Parquet file that may be a stranger's: a few kilobytes can unpack to gigabytes, which is refused beforehand.

Repeated cells are stored once, in a dictionary. They are read as they are stored, and copied out only after their size
is known to fit the budget.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from noisesieve.core.untrusted import require_regular

MOST_CELL = 2**24  # bytes of a text cell
SMALLEST_BUDGET = 2**28  # bytes that any table may unpack to
UNPACKED = 50  # times its file that a larger table may unpack to
ROW_BYTES = 100  # of a row's path, label and id as Python objects
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}  # bytes


class TooLarge(ValueError):
    """The table would take more memory than its file can justify."""


def open_packed(file: str | Path) -> pq.ParquetFile:
    """Open a file whose repeated cells stay in dictionaries, once each, as they are stored."""
    require_regular(Path(file))
    with pq.ParquetFile(file) as plain:
        names = _text_columns(plain)
    return pq.ParquetFile(file, read_dictionary=names)


def _text_columns(opened: pq.ParquetFile) -> list[str]:
    """Return the columns of text or bytes, by their path in the file."""
    columns = (opened.schema.column(i) for i in range(len(opened.schema)))
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def read_parquet(file: Path, columns: Sequence[str] | None = None) -> tuple[pa.Table, pa.Schema]:
    """Return some columns, or all, and the file's whole schema. Raises TooLarge, OSError or ArrowException."""
    with ParquetTable(file) as table:
        return table.read(columns), table.schema


class ParquetTable:
    """An open Parquet file, read by columns and by rows. Raises TooLarge, OSError or ArrowException."""

    def __init__(self, file: Path) -> None:
        self._packed = open_packed(file)
        self._plain = pq.ParquetFile(file)
        self.schema: pa.Schema = self._plain.schema_arrow
        self._budget = memory_budget(os.path.getsize(file))
        sizes = [self._plain.metadata.row_group(group).num_rows for group in range(self._plain.num_row_groups)]
        self._starts = np.cumsum([0, *sizes])

    def __enter__(self) -> ParquetTable:
        return self

    def __exit__(self, *_: object) -> None:
        self._packed.close()
        self._plain.close()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def empty_cells(self, column: str) -> int | None:
        """Return how many cells of a column are null, as the file says of itself; None if it does not."""
        total, metadata = 0, self._plain.metadata
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(number)
                if chunk.path_in_schema.partition(".")[0] == column:
                    if chunk.statistics is None or not chunk.statistics.has_null_count:
                        return None
                    total += chunk.statistics.null_count
        return total

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows."""
        chosen = [name for name in self.schema.names if columns is None or name in columns]
        need = ROW_BYTES * len(self) + _stored_bytes(self._packed, set(chosen))
        if need > self._budget:
            raise TooLarge(f"{len(self):,} rows would take {need / 2**30:,.1f} GiB")
        groups, left = [], self._budget
        for number in range(len(self._starts) - 1):
            groups.append(self._group(number, chosen, left))
            left -= groups[-1].nbytes
        empty = pa.schema([self.schema.field(name) for name in chosen], metadata=self.schema.metadata).empty_table()
        return pa.concat_tables(groups) if groups else empty

    def groups(self, columns: Sequence[str] | None = None, *, longest: int = MOST_CELL) -> Iterator[pa.Table]:
        """Yield the rows, one row group at a time. A cell of more than `longest` bytes is refused."""
        chosen = [name for name in self.schema.names if columns is None or name in columns]
        for number in range(len(self._starts) - 1):
            yield self._group(number, chosen, self._budget, longest)

    def take(self, rows: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """Return some rows, in their order. Only the row groups that they are in are read."""
        chosen = [name for name in self.schema.names if columns is None or name in columns]
        order = np.argsort(rows, kind="stable")
        number = np.searchsorted(self._starts, rows[order], side="right") - 1
        parts = [self._group(0, chosen, self._budget).slice(0, 0) if len(self) else self.read(columns)]
        for group in np.unique(number).tolist():
            own = rows[order][number == group] - self._starts[group]
            parts.append(self._group(group, chosen, self._budget).take(pa.array(own)))
        back = np.empty(len(rows), dtype=np.int64)
        back[order] = np.arange(len(rows))
        return pa.concat_tables(parts).take(pa.array(back))

    def _group(self, number: int, columns: list[str], budget: int, longest: int = MOST_CELL) -> pa.Table:
        again = functools.partial(_one_column, self._plain, number)
        packed = self._packed.read_row_group(number, columns)
        return _unpacked(packed, self.schema, budget, again, longest=longest)


def read_row_groups(file: str | Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the row groups of a file, for tables with embedded images. Raises as `read_parquet`."""
    with ParquetTable(Path(file)) as table:
        yield from table.groups(columns, longest=memory_budget(os.path.getsize(file)))


def _one_column(plain: pq.ParquetFile, group: int, name: str) -> pa.Table:
    return plain.read_row_group(group, [name])


def _unpacked(
    packed: pa.Table,
    schema: pa.Schema,
    budget: int,
    read_again: Callable[[str], pa.Table],
    *,
    longest: int = MOST_CELL,
) -> pa.Table:
    """Return a table in the types of its schema, with every cell copied out of its dictionary, if that fits."""
    fields = [schema.field(name) for name in packed.column_names]
    parts = []
    for field, column in zip(fields, packed.columns, strict=True):
        budget -= sum(_bytes_of(chunk, longest) for chunk in column.chunks)
        if budget < 0:
            raise TooLarge(f"the column {field.name!r} unpacks to far more than the file has")
        try:
            parts.append(column if column.type.equals(field.type) else column.cast(field.type))
        except pa.ArrowNotImplementedError:  # a rare type, whose size is known to fit by now
            parts.append(read_again(field.name)[field.name])
    return pa.table(parts, schema=pa.schema(fields, metadata=schema.metadata))


def memory_budget(file_bytes: int) -> int:
    """Return how many bytes a table of this size on disk may take."""
    return max(SMALLEST_BUDGET, UNPACKED * file_bytes)


def _stored_bytes(opened: pq.ParquetFile, columns: set[str]) -> int:
    """Return the size of some columns as they are read, with repeated cells once, from what the file says of itself."""
    total = 0
    for group in range(opened.num_row_groups):
        for number in range(opened.metadata.num_columns):
            chunk, column = opened.metadata.row_group(group).column(number), opened.schema.column(number)
            if chunk.path_in_schema.partition(".")[0] in columns:
                total += chunk.num_values * (WIDTHS.get(column.physical_type) or max(1, column.length))
    return total


def _bytes_of(array: pa.Array, longest: int) -> int:
    """Return the size of an array once every cell has its own copy. A cell that is too long raises TooLarge."""
    kind = array.type
    if pa.types.is_dictionary(kind) and _is_text(kind.value_type):
        lengths = pc.binary_length(array.dictionary)
        if len(lengths) and (pc.max(lengths).as_py() or 0) > longest:
            raise TooLarge(f"a cell of more than {longest:,} bytes")
        return 8 * len(array) + (pc.sum(pc.take(lengths, array.indices).cast(pa.int64())).as_py() or 0)
    if pa.types.is_struct(kind):
        return sum(_bytes_of(array.field(i), longest) for i in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return 8 * len(array) + _bytes_of(array.flatten(), longest)
    return int(array.nbytes)


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)
