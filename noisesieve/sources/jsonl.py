"""JSONL: one object per line. An image may be embedded as base64, alone or as {"bytes": …, "path": …}."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from noisesieve.core.errors import InputError
from noisesieve.core.files import Json
from noisesieve.core.records import Index
from noisesieve.core.text import IMAGE_EXTENSIONS, refuse_half_characters
from noisesieve.core.untrusted import open_regular
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.table import Table, to_index

BLOCK = 16_384  # lines as Python objects at a time
LONGEST_LINE = 2**28  # bytes; an embedded image in base64 may be long
MOST_EMPTY = 50  # missing cells per cell up to which lines make a table


def read(settings: SourceSettings) -> Index:
    """Index a JSONL file; the images themselves stay on disk until they are decoded."""
    file = settings.path
    columns, rows = _Columns(), list[Json]()
    lines: list[int] = []
    offsets: list[int] = []
    offset = cells = 0
    is_path = False  # some cell of `image` is the name of a file
    try:
        with open_regular(file) as blob:
            for number, line in enumerate(iter(lambda: blob.readline(LONGEST_LINE), b""), start=1):
                if len(line) == LONGEST_LINE:
                    raise InputError(f"{file}:{number}: longer than {LONGEST_LINE:,} bytes.", "Is it one row?")
                if line.strip():
                    row = _object(line, file, number)
                    _refuse_multi_label(row.get(settings.label_column), settings, number)
                    if (image := _image_column(row, settings)) is not None:
                        row[image] = None  # read again for decoding, so that the index stays small
                    refuse_half_characters(row, f"{file}:{number}")
                    is_path = is_path or _is_path(row.get("image"))
                    cells += len(row)
                    rows.append(row)
                    lines.append(number)
                    offsets.append(offset)
                    if len(rows) == BLOCK:
                        columns.add(rows)
                        rows = []
                offset += len(line)
        columns.add(rows)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.", "Check its permissions.") from error
    names = columns.names
    if len(names) * len(lines) > MOST_EMPTY * cells + 10**6:
        raise InputError(
            f"{file}: {len(names):,} different keys in {len(lines):,} lines, nearly all of them missing in each.",
            "Give every line the same keys; put the rest into one text.",
        )
    embedded = _embedded(names, settings, is_path=is_path)
    kept = [name for name in names if name != embedded]
    arrays = [columns.column(name) for name in kept]
    table = Table(
        pa.table(arrays, names=kept) if kept else pa.table({}),
        np.array(lines, dtype=np.int64),
        embedded,
        np.array(offsets, dtype=np.int64).item,
    )
    return to_index(table, settings, "jsonl")


def refuse_json(path: Path) -> NoReturn:
    """Raise an error that says what a .json file probably is, and what to do."""
    with open_regular(path) as file:
        head = file.read(1 << 20).decode("utf-8", "replace")
    if '"annotations"' in head and '"images"' in head:
        raise InputError(
            f"{path}: looks like a COCO file, with several objects per image.",
            "noisesieve needs one label per image: crop the objects into class folders first.",
        )
    raise InputError(f"{path}: a JSON document, not a table.", "Give one object per line, as .jsonl.")


def _object(line: bytes, file: Path, number: int) -> Json:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error)
        raise InputError(f"{file}:{number}: not JSON ({reason}).", "Each line must be one JSON object.") from error
    if not isinstance(row, dict):
        raise InputError(f"{file}:{number}: not an object.", 'Each line must be one, as {"path": …, "label": …}.')
    if "annotations" in row and "images" in row:
        raise InputError(f"{file}:{number}: looks like a COCO file.", "noisesieve needs one label per image.")
    return row


def _refuse_multi_label(label: Any, settings: SourceSettings, number: int) -> None:
    if isinstance(label, list | dict):
        raise InputError(
            f"{settings.path}:{number}: the label is a list: a multi-label dataset.",
            "noisesieve needs one label per image.",
        )


def _image_column(row: Json, settings: SourceSettings) -> str | None:
    column = settings.image_column or ("image" if settings.path_column not in row else None)
    if column not in row or (settings.image_column is None and _is_path(row[column])):
        return None
    return column


def _is_path(cell: Any) -> bool:
    """Return True for the name of an image file, which base64 is not."""
    return isinstance(cell, str) and os.path.splitext(cell)[1].lower() in IMAGE_EXTENSIONS


def _embedded(names: Iterable[str], settings: SourceSettings, *, is_path: bool) -> str | None:
    if settings.image_column is not None:
        if settings.image_column not in names:
            raise InputError(f"{settings.path}: no column {settings.image_column!r}.", "Check --image-column.")
        return settings.image_column
    if "image" not in names or settings.path_column in names:
        return None
    return None if is_path else "image"


class _Columns:
    """The cells of all lines by key, in Arrow: as Python objects a million lines take gigabytes."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}  # every key, in the order found
        self._blocks: dict[str, list[pa.Array]] = {}
        self._mixed: set[str] = set()  # whose cells are kept as JSON: lists, objects, or cells of several types
        self._counts: list[int] = []

    def add(self, rows: list[Json]) -> None:
        """Add some lines. A key that they lack is null in them."""
        self.names.update(dict.fromkeys(name for row in rows for name in row))
        for name in self.names:
            blocks = self._blocks.setdefault(name, [pa.nulls(count) for count in self._counts])
            blocks.append(self._array(name, [row.get(name) for row in rows]))
        self._counts.append(len(rows))

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column with its own type; as text if the types of its cells differ."""
        blocks = self._blocks[name]
        kinds = {block.type for block in blocks if not pa.types.is_null(block.type)}
        if name in self._mixed:
            return pa.chunked_array([_as_texts(block) for block in blocks], pa.string())
        if len(kinds) <= 1:
            kind = next(iter(kinds), pa.null())
            return pa.chunked_array([block.cast(kind) for block in blocks], kind)
        if kinds == {pa.int64(), pa.float64()}:
            try:
                return pa.chunked_array([block.cast(pa.float64()) for block in blocks], pa.float64())
            except pa.ArrowInvalid:  # an integer that no float has
                pass
        return pa.chunked_array([_as_texts(block) for block in blocks], pa.string())

    def _array(self, name: str, values: list[Any]) -> pa.Array:
        """Return some cells with their own type, or as the texts that `_as_texts` reads."""
        try:
            if not any(isinstance(value, list | dict) for value in values):
                return pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pass
        self._mixed.add(name)
        return pa.array([_text(value) for value in values], pa.string())


def _as_texts(block: pa.Array) -> pa.Array:
    return block if pa.types.is_string(block.type) else pa.array([_text(v) for v in block.to_pylist()], pa.string())


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else json.dumps(value, ensure_ascii=False)
