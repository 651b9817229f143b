"""The user's own vectors: embeddings, or class probabilities, by row or by id, from .npy, .npz or Parquet."""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from noisesieve.core.columns import Texts
from noisesieve.core.errors import InputError
from noisesieve.core.memory import room_for
from noisesieve.core.parquet_file import ROW_BYTES, ParquetTable, memory_budget
from noisesieve.core.records import Index, Ints, Probabilities
from noisesieve.core.text import natural_key
from noisesieve.core.untrusted import open_regular

SUMS_TO_ONE = 1e-3  # by which the probabilities of a row may miss 1
IDS, CLASSES = "ids", "classes"  # names of further arrays in an .npz
BLOCK_VALUES = 2**20  # numbers that are converted at a time

Block = npt.NDArray[Any]  # (B, D) of any kind of number


@dataclass(frozen=True)
class _File:
    """An array of a file, one row per vector. Its numbers are read block by block."""

    shape: tuple[int, int]
    blocks: Callable[[], Iterator[Block]]
    ids: Texts | None = None
    names: list[str] | None = None  # of the columns


def read_embeddings(file: Path, index: Index, whole: Sequence[str]) -> Probabilities:
    """Return the embeddings (N, D) of the rows of an index. `whole` are the ids of the whole table, in its order."""
    content = _read(file)
    own = {index.label_column, "label", "split", "__index_level_0__"}
    own |= set() if index.carried is None else set(index.carried.column_names)
    if taken := [name for name in content.names or [] if name in own]:
        raise InputError(f"{file}: the column {taken[0]!r} is no part of an embedding.", "Leave it out.")
    return _filled(content, file, index, _places(content, file, index, whole), lambda block, rows: block)


def read_predictions(
    file: Path, index: Index, whole: Sequence[str], classes: tuple[str, ...]
) -> tuple[Probabilities, list[str], str]:
    """Return the class probabilities (N, K) of the rows of an index, the classes in natural order, and a hash of all.

    The order of the file's columns is that of its header or, if it has none, that of `classes`.
    """
    content = _read(file)
    if classes and content.names and set(classes) == set(content.names) and list(classes) != content.names:
        raise InputError(f"{file}: its header has the classes in another order.", "Leave --classes out.")
    names = list(classes) or content.names
    if names is None:
        raise InputError(f"{file}: nothing says which column is which class.", "Give them in order: --classes a,b,c")
    if len(names) != content.shape[1]:
        raise InputError(f"{file}: {content.shape[1]} columns for {len(names)} classes.", "Check --classes.")
    if len(set(names)) < len(names):
        raise InputError(f"{file}: a class is named twice.", "Rename one of its columns.")
    if unknown := [label for label in index.column("labels").distinct() if label not in set(names)]:
        raise InputError(f"{file}: no column for the class {unknown[0]!r}. It has: {', '.join(names[:20])}.")
    order = sorted(range(len(names)), key=lambda column: natural_key(names[column]))

    def normalize(block: Block, rows: Ints) -> Block:
        values = block.astype(np.float64)
        sums = values.sum(axis=1)
        wrong = np.isfinite(values).all(axis=1) & ((values < 0).any(axis=1) | (np.abs(sums - 1) > SUMS_TO_ONE))
        if wrong.any():
            first = int(np.flatnonzero(wrong)[rows[wrong].argmin()])
            row = int(rows[first])
            raise InputError(
                f"{file}: the probabilities of {index.ids[row]!r} (row {row}) are below 0, or add up to "
                f"{sums[first]:.4g}.",
                "Give probabilities, not scores or logits.",
            )
        values = np.ascontiguousarray((values / sums[:, None])[:, order])
        hasher.update(values.data)
        return values

    hasher = hashlib.sha256()
    probs = _filled(content, file, index, _places(content, file, index, whole), normalize)
    return probs, [names[column] for column in order], hasher.hexdigest()


def _read(file: Path) -> _File:
    readers = {".npy": _read_npy, ".npz": _read_npz, ".parquet": _read_parquet, ".pq": _read_parquet}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise InputError(f"{file}: not a file of vectors.", f"Give a file that ends in {', '.join(readers)}.")
    try:
        return reader(file)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, pa.ArrowException) as error:
        raise InputError(f"{file}: cannot be read ({error}).", "Write it again.") from error


def _read_npy(file: Path) -> _File:
    with open_regular(file) as opened:
        shape, by_columns, kind = _require_length(opened, os.fstat(opened.fileno()).st_size)
        start = opened.tell()
    if kind.hasobject:
        raise ValueError("it has objects, which only a pickle holds")
    rows, width = _matrix_shape(shape, kind, file)

    def blocks() -> Iterator[Block]:
        with open_regular(file) as numbers:  # not a memory map: its pages would count as memory of this process
            numbers.seek(start)
            for first in range(0, rows, size := max(1, BLOCK_VALUES // max(1, width))):
                count = min(size, rows - first)
                blob = numbers.read(count * width * kind.itemsize)
                yield np.frombuffer(blob, dtype=kind, count=count * width).reshape(count, width)

    return _of_array(np.load(file, mmap_mode="r"), file) if by_columns else _File((rows, width), blocks)


def _of_array(array: npt.NDArray[Any], file: Path, ids: Texts | None = None, names: list[str] | None = None) -> _File:
    """Return an array that is in memory, or mapped."""
    rows, width = _matrix_shape(array.shape, array.dtype, file)
    size = max(1, BLOCK_VALUES // max(1, width))
    return _File((rows, width), lambda: (array[first : first + size] for first in range(0, rows, size)), ids, names)


def _require_length(array: IO[bytes], length: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Refuse an array whose header claims more numbers than there are bytes, before memory is asked for them.

    Returns its shape, whether it is stored column by column, and the kind of its numbers.
    """
    version = np.lib.format.read_magic(array)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, kind = header(array)
    if math.prod(shape) * max(1, kind.itemsize) > length:
        raise ValueError(f"its header claims an array of shape {shape}, more than the file has")
    if shape and shape[0] * ROW_BYTES > memory_budget(length):
        raise ValueError(f"{shape[0]:,} rows of next to nothing")
    return shape, by_columns, kind


def _require_unpacked(file: Path) -> None:
    """Refuse an .npz that unpacks to far more than its size, or whose arrays claim more than they have."""
    with open_regular(file) as opened, zipfile.ZipFile(opened) as parts:
        unpacked = sum(part.file_size for part in parts.infolist())
        if unpacked > memory_budget(os.fstat(opened.fileno()).st_size):
            raise ValueError(f"it unpacks to {unpacked:,} bytes")
        for part in parts.infolist():
            with parts.open(part) as array:
                _require_length(array, part.file_size)


def _read_npz(file: Path) -> _File:
    _require_unpacked(file)
    with np.load(file, allow_pickle=False) as arrays:
        matrices = [name for name in arrays.files if name not in (IDS, CLASSES)]
        if len(matrices) != 1:
            raise InputError(f"{file}: has the arrays {', '.join(arrays.files)}.", "Give one, and `ids` if you like.")
        ids, names = (_texts(arrays[name]) if name in arrays.files else None for name in (IDS, CLASSES))
        return _of_array(arrays[matrices[0]], file, None if ids is None else Texts(ids), names)


def _texts(array: npt.NDArray[np.generic]) -> list[str]:
    return [str(value) for value in array.reshape(-1).tolist()]


def _read_parquet(file: Path) -> _File:
    """Read one column of lists, or one column per number; a column `id` or `ids` has the ids."""
    with ParquetTable(file) as table:
        schema, rows = table.schema, len(table)
        key = next((name for name in ("id", IDS) if name in schema.names), None)
        ids = None if key is None else Texts(table.read([key])[key].cast(pa.large_string()))
    names = [name for name in schema.names if name != key]
    lists = [name for name in names if pa.types.is_nested(schema.field(name).type)]
    if len(lists) > 1:
        raise InputError(f"{file}: two columns of lists, {lists[0]!r} and {lists[1]!r}.", "Keep one of them.")
    if lists:
        return _File((rows, _list_width(file, lists[0])), lambda: _list_blocks(file, lists[0]), ids)
    for name in names:
        kind = schema.field(name).type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise InputError(f"{file}: the column {name!r} has no numbers ({kind}).", "Leave it out.")
    if not names:
        raise InputError(f"{file}: has no columns of numbers.", "Give one row of numbers per row of the table.")

    def blocks() -> Iterator[Block]:
        with ParquetTable(file) as opened:
            for group in opened.groups(names):
                yield np.stack([group[name].to_numpy().astype(np.float64) for name in names], axis=1)

    return _File((rows, len(names)), blocks, ids, names)


def _list_width(file: Path, column: str) -> int:
    """Return the length of a column's lists, which must be the same in every row."""
    widths: set[int | None] = set()
    with ParquetTable(file) as opened:
        for group in opened.groups([column]):
            widths |= set(pc.unique(pc.list_value_length(group[column].combine_chunks())).to_pylist())
    if len(widths) != 1 or None in widths:
        raise InputError(f"{file}: the lists of {column!r} have different lengths.", "Give every row as many.")
    return int(widths.pop() or 0)


def _list_blocks(file: Path, column: str) -> Iterator[Block]:
    with ParquetTable(file) as opened:
        for group in opened.groups([column]):
            rows = group[column].combine_chunks()
            yield np.asarray(rows.flatten().to_numpy(zero_copy_only=False), dtype=np.float64).reshape(len(rows), -1)


def _matrix_shape(shape: tuple[int, ...], kind: np.dtype[Any], file: Path) -> tuple[int, int]:
    if len(shape) != 2 or kind.kind not in "fiu":
        raise InputError(f"{file}: an array of shape {shape} and type {kind}.", "Give one row of numbers per row.")
    if shape[1] == 0:
        raise InputError(f"{file}: its rows are empty.", "Give one row of numbers per row of the table.")
    return shape[0], shape[1]


def _places(content: _File, file: Path, index: Index, whole: Sequence[str]) -> Ints:
    """Return the row of the index of each row of the file, -1 for a row that the index does not have."""
    ids, total = index.column("ids"), len(whole)
    if content.ids is not None:
        if (row := content.ids.first_repeated()) is not None:
            raise InputError(f"{file}: the id {content.ids[row]!r} is there twice.", "Keep one of them.")
        if len(missing := np.flatnonzero(ids.codes(content.ids) < 0)):
            more = f", and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise InputError(f"{file}: no vector for the id {ids[int(missing[0])]!r}{more}.", "Is --id-column right?")
        return content.ids.codes(ids)
    if content.shape[0] != total:
        raise InputError(
            f"{file}: {content.shape[0]:,} rows, and the table has {total:,}.",
            "Give one per row, or ids to match them by.",
        )
    if total == len(index):
        return np.arange(total, dtype=np.int64)
    return (whole if isinstance(whole, Texts) else Texts(whole)).codes(ids)  # --split or --limit


def _filled(
    content: _File, file: Path, index: Index, places: Ints, convert: Callable[[Block, Ints], Block]
) -> Probabilities:
    """Return the vectors in the order of the index, in float32, all of them finite."""
    values = room_for((len(index), content.shape[1]))
    bad, first = 0, len(index)
    start = 0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for whole_block in content.blocks():
            rows = places[start : start + len(whole_block)]
            start += len(whole_block)
            used = rows >= 0
            rows, block = (rows, whole_block) if used.all() else (rows[used], whole_block[used])
            block = convert(block, rows).astype(np.float32)
            values[rows] = block
            infinite = ~np.isfinite(block).all(axis=1)
            if infinite.any():
                bad, first = bad + int(infinite.sum()), min(first, int(rows[infinite].min()))
    if bad:
        raise InputError(
            f"{file}: the vector of {index.ids[first]!r} (row {first}) has a NaN or an infinite number; "
            f"{bad:,} rows have.",
            "Compute these again, or leave the rows out.",
        )
    return values
