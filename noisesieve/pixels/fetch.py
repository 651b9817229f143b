"""The bytes of one image, from a file or from a cell of a table. Never hangs: FIFOs and devices are refused."""

from __future__ import annotations

import base64
import errno
import functools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.core.parquet_file import open_packed
from noisesieve.core.records import ImageLocation, Ints
from noisesieve.core.untrusted import open_regular, read_regular
from noisesieve.pixels.image import Unreadable

MAX_BYTES = 2**29  # larger files are not read
BATCH = 64  # embedded images that are in memory at a time


def fetch(location: ImageLocation) -> bytes:
    """Return the bytes of an image. Raises Unreadable with the reason."""
    if location.column is None:
        return _file(location.file)
    try:
        cell = _cell(location.file, location.column, location.position)
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, StopIteration) as error:
        raise Unreadable(f"cannot be read from the table: {type(error).__name__}") from error
    if cell is None:
        raise Unreadable(f"no image bytes in column {location.column!r}")
    return cell


def _file(path: str) -> bytes:
    try:
        return read_regular(path, most=MAX_BYTES)
    except FileNotFoundError:
        raise Unreadable("missing file") from None
    except OSError as error:
        own = error.errno in (errno.EINVAL, errno.EFBIG)  # our own words: not a regular file, too large
        raise Unreadable(str(error.strerror) if own else f"cannot be opened: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise Unreadable(f"cannot be opened: {error}") from error


def _cell(file: str, column: str, position: int) -> bytes | None:
    if _is_jsonl(file):
        return _jsonl_cell(file, column, position)
    cell: Any = _cells(file, column).read(position)
    if isinstance(cell, dict):  # Hugging Face: a struct of bytes and path
        cell = cell.get("bytes")
    if isinstance(cell, bytes) and len(cell) > MAX_BYTES:
        raise Unreadable(f"{len(cell)} bytes, more than {MAX_BYTES}")
    return cell if isinstance(cell, bytes) else None


def _is_jsonl(file: str) -> bool:
    return file.lower().endswith((".jsonl", ".ndjson"))


def row_group(location: ImageLocation) -> tuple[str, int] | None:
    """Return the file and the row group of an image that is embedded in a Parquet file; None for any other."""
    if location.column is None or _is_jsonl(location.file):
        return None
    try:
        return location.file, int(np.searchsorted(_starts(location.file), location.position, side="right")) - 1
    except (pa.ArrowException, OSError):
        return None  # the worker finds out why


class _Cells:
    """The cells of one column, read in order: a batch of them is in memory, not a whole row group."""

    def __init__(self, file: str, column: str) -> None:
        self._file, self._column = file, column
        self._starts = _starts(file)
        self._group = -1
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: pa.Array = pa.nulls(0)
        self._first = 0  # position of the first cell of the batch

    def read(self, position: int) -> Any:
        """Return the cell at a position. Positions that ascend are read once."""
        group = int(np.searchsorted(self._starts, position, side="right")) - 1
        if group != self._group or position < self._first:
            self._group, self._batch, self._first = group, pa.nulls(0), int(self._starts[group])
            self._batches = _open(self._file).iter_batches(BATCH, row_groups=[group], columns=[self._column])
        while position >= self._first + len(self._batch):
            self._first += len(self._batch)
            self._batch = next(self._batches).column(0)  # StopIteration: the file has fewer rows than it claims
        return self._batch[position - self._first].as_py()


def _jsonl_cell(file: str, column: str, offset: int) -> bytes | None:
    with open_regular(file) as lines:
        lines.seek(offset)
        cell = json.loads(lines.readline()).get(column)
    if isinstance(cell, dict):
        cell = cell.get("bytes")
    if not isinstance(cell, str):
        return None
    try:
        return base64.b64decode(cell.partition(",")[2] if cell.startswith("data:") else cell, validate=True)
    except ValueError as error:
        raise Unreadable(f"column {column!r} is not base64") from error


@functools.lru_cache(maxsize=4)
def _open(file: str) -> pq.ParquetFile:
    return open_packed(file)  # a few kilobytes may repeat an image a million times


@functools.lru_cache(maxsize=4)
def _starts(file: str) -> Ints:
    metadata = _open(file).metadata
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    return np.cumsum([0, *sizes], dtype=np.int64)[:-1]


@functools.lru_cache(maxsize=2)
def _cells(file: str, column: str) -> _Cells:
    return _Cells(file, column)
