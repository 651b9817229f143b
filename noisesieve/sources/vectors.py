"""The user's own vectors: embeddings, or class probabilities, by row or by id, from .npy, .npz or Parquet."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from noisesieve.core.errors import InputError
from noisesieve.core.parquet_file import ROW_BYTES, memory_budget, read_parquet
from noisesieve.core.records import Floats, Index
from noisesieve.core.text import natural_key
from noisesieve.core.untrusted import open_regular

Vectors = npt.NDArray[np.float32]
SUMS_TO_ONE = 1e-3  # by which the probabilities of a row may miss 1
IDS, CLASSES = "ids", "classes"  # names of further arrays in an .npz


@dataclass(frozen=True)
class _File:
    """An array as read, one row per vector."""

    values: npt.NDArray[np.float64]  # (N, D)
    ids: list[str] | None
    names: list[str] | None  # of the columns


def read_embeddings(file: Path, index: Index, whole: Sequence[str]) -> Vectors:
    """Return the embeddings (N, D) of the rows of an index. `whole` are the ids of the whole table, in its order."""
    content = _read(file)
    own = {index.label_column, "label", "split", "__index_level_0__"}
    own |= set() if index.carried is None else set(index.carried.column_names)
    if taken := [name for name in content.names or [] if name in own]:
        raise InputError(f"{file}: the column {taken[0]!r} is no part of an embedding.", "Leave it out.")
    with np.errstate(over="ignore"):
        content = replace(content, values=content.values.astype(np.float32).astype(np.float64))
    return np.ascontiguousarray(_aligned(content, file, index, whole), dtype=np.float32)


def read_predictions(
    file: Path, index: Index, whole: Sequence[str], classes: tuple[str, ...]
) -> tuple[Floats, list[str]]:
    """Return the class probabilities (N, K) of the rows of an index, and the classes in natural order.

    The order of the file's columns is that of its header or, if it has none, that of `classes`.
    """
    content = _read(file)
    if classes and content.names and set(classes) == set(content.names) and list(classes) != content.names:
        raise InputError(f"{file}: its header has the classes in another order.", "Leave --classes out.")
    names = list(classes) or content.names
    if names is None:
        raise InputError(f"{file}: nothing says which column is which class.", "Give them in order: --classes a,b,c")
    if len(names) != content.values.shape[1]:
        raise InputError(f"{file}: {content.values.shape[1]} columns for {len(names)} classes.", "Check --classes.")
    if len(set(names)) < len(names):
        raise InputError(f"{file}: a class is named twice.", "Rename one of its columns.")
    if unknown := [label for label in dict.fromkeys(index.labels) if label not in set(names)]:
        raise InputError(f"{file}: no column for the class {unknown[0]!r}. It has: {', '.join(names[:20])}.")
    probs = _aligned(content, file, index, whole)
    sums = probs.sum(axis=1)
    wrong = np.flatnonzero((probs < 0).any(axis=1) | (np.abs(sums - 1) > SUMS_TO_ONE))
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"{file}: the probabilities of {index.ids[row]!r} (row {row}) are below 0, or add up to {sums[row]:.4g}.",
            "Give probabilities, not scores or logits.",
        )
    order = sorted(range(len(names)), key=lambda column: natural_key(names[column]))
    return (probs / sums[:, None])[:, order], [names[column] for column in order]


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
        _require_length(opened, os.fstat(opened.fileno()).st_size)
    return _File(_matrix(np.load(file, allow_pickle=False), file), None, None)


def _require_length(array: IO[bytes], length: int) -> None:
    """Refuse an array whose header claims more numbers than there are bytes, before memory is asked for them."""
    version = np.lib.format.read_magic(array)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = header(array)
    if math.prod(shape) * max(1, kind.itemsize) > length:
        raise ValueError(f"its header claims an array of shape {shape}, more than the file has")
    if shape and shape[0] * ROW_BYTES > memory_budget(length):
        raise ValueError(f"{shape[0]:,} rows of next to nothing")


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
        return _File(_matrix(arrays[matrices[0]], file), ids, names)


def _texts(array: npt.NDArray[np.generic]) -> list[str]:
    return [str(value) for value in array.reshape(-1).tolist()]


def _read_parquet(file: Path) -> _File:
    """Read one column of lists, or one column per number; a column `id` or `ids` has the ids."""
    table, _ = read_parquet(file)
    key = next((name for name in ("id", IDS) if name in table.column_names), None)
    ids = None if key is None else [str(value) for value in table[key].to_pylist()]
    table = table if key is None else table.drop_columns([key])
    lists = [name for name in table.column_names if pa.types.is_nested(table[name].type)]
    if lists:
        if len(lists) > 1:
            raise InputError(f"{file}: two columns of lists, {lists[0]!r} and {lists[1]!r}.", "Keep one of them.")
        rows = table[lists[0]].combine_chunks()
        widths = set(pa.compute.list_value_length(rows).to_pylist())
        if len(widths) != 1:
            raise InputError(f"{file}: the lists of {lists[0]!r} have different lengths.", "Give every row as many.")
        flat = np.asarray(rows.flatten().to_numpy(zero_copy_only=False), dtype=np.float64)
        return _File(flat.reshape(len(rows), -1), ids, None)
    kinds = {name: table[name].type for name in table.column_names}
    for name, kind in kinds.items():
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise InputError(f"{file}: the column {name!r} has no numbers ({kind}).", "Leave it out.")
    columns = [table[name].to_numpy().astype(np.float64) for name in table.column_names]
    if not columns:
        raise InputError(f"{file}: has no columns of numbers.", "Give one row of numbers per row of the table.")
    return _File(np.stack(columns, axis=1), ids, table.column_names)


def _matrix(array: npt.NDArray[np.generic], file: Path) -> npt.NDArray[np.float64]:
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise InputError(
            f"{file}: an array of shape {array.shape} and type {array.dtype}.", "Give one row of numbers per row."
        )
    return array.astype(np.float64)


def _aligned(content: _File, file: Path, index: Index, whole: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return the vectors in the order of the index, all of them finite."""
    values, total = content.values, len(whole)
    if content.ids is not None:
        row_of: dict[str, int] = {}
        for row, name in enumerate(content.ids):
            if row_of.setdefault(name, row) != row:
                raise InputError(f"{file}: the id {name!r} is there twice.", "Keep one of them.")
        if missing := [name for name in index.ids if name not in row_of]:
            more = f", and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise InputError(f"{file}: no vector for the id {missing[0]!r}{more}.", "Is --id-column right?")
        values = values[[row_of[name] for name in index.ids]]
    elif len(values) != total:
        raise InputError(
            f"{file}: {len(values):,} rows, and the table has {total:,}.", "Give one per row, or ids to match them by."
        )
    elif total != len(index):  # --split or --limit
        place = {name: row for row, name in enumerate(whole)}
        values = values[[place[name] for name in index.ids]]
    if values.shape[1] == 0:
        raise InputError(f"{file}: its rows are empty.", "Give one row of numbers per row of the table.")
    if len(bad := np.flatnonzero(~np.isfinite(values).all(axis=1))):
        row = int(bad[0])
        raise InputError(
            f"{file}: the vector of {index.ids[row]!r} (row {row}) has a NaN or an infinite number; "
            f"{len(bad):,} rows have.",
            "Compute these again, or leave the rows out.",
        )
    return values
