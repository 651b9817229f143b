"""The bytes of one image, from a file or from a cell of a table. Never hangs: FIFOs and devices are refused."""

from __future__ import annotations

import base64
import errno
import functools
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.core.parquet_file import open_packed
from noisesieve.core.records import ImageLocation, Ints
from noisesieve.core.untrusted import open_regular, read_regular
from noisesieve.pixels.image import Unreadable

MAX_BYTES = 2**29  # larger files are not read


def fetch(location: ImageLocation) -> bytes:
    """Return the bytes of an image. Raises Unreadable with the reason."""
    if location.column is None:
        return _file(location.file)
    try:
        cell = _cell(location.file, location.column, location.position)
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError) as error:
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
    if file.lower().endswith((".jsonl", ".ndjson")):
        return _jsonl_cell(file, column, position)
    starts = _starts(file)
    group = int(np.searchsorted(starts, position, side="right")) - 1
    cell: Any = _group(file, column, group)[position - int(starts[group])].as_py()
    if isinstance(cell, dict):  # Hugging Face: a struct of bytes and path
        cell = cell.get("bytes")
    if isinstance(cell, bytes) and len(cell) > MAX_BYTES:
        raise Unreadable(f"{len(cell)} bytes, more than {MAX_BYTES}")
    return cell if isinstance(cell, bytes) else None


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


@functools.lru_cache(maxsize=2)  # rows are read in order: the current row group and the one before
def _group(file: str, column: str, group: int) -> pa.ChunkedArray:
    return _open(file).read_row_group(group, columns=[column])[column]
