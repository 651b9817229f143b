"""Read a Parquet file that may be a stranger's: a few kilobytes can unpack to gigabytes, which is refused beforehand.

Repeated cells are stored once, in a dictionary. They are read as they are stored, and copied out only after their size
is known to fit the budget.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

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
    with open_packed(file) as opened:
        schema = pq.read_schema(file)
        chosen = [name for name in schema.names if columns is None or name in columns]
        rows, budget = opened.metadata.num_rows, memory_budget(os.path.getsize(file))
        need = ROW_BYTES * rows + _stored_bytes(opened, set(chosen))
        if need > budget:
            raise TooLarge(f"{rows:,} rows would take {need / 2**30:,.1f} GiB")
        return _unpacked(opened.read(chosen), schema, budget, lambda name: pq.read_table(file, columns=[name])), schema


def read_row_groups(file: str | Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the row groups of a file, for tables with embedded images. Raises as `read_parquet`."""
    budget = memory_budget(os.path.getsize(file))
    with open_packed(file) as opened, pq.ParquetFile(file) as plain:
        for number in range(opened.num_row_groups):
            packed = opened.read_row_group(number, columns)
            again = functools.partial(_one_column, plain, number)
            yield _unpacked(packed, plain.schema_arrow, budget, again, longest=budget)


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
