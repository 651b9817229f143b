"""JSONL: one object per line. An image may be embedded as base64, alone or as {"bytes": …, "path": …}."""

from __future__ import annotations

import json
import os
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

LONGEST_LINE = 2**28  # bytes; an embedded image in base64 may be long
MOST_EMPTY = 50  # missing cells per cell up to which lines make a table


def read(settings: SourceSettings) -> Index:
    """Index a JSONL file; the images themselves stay on disk until they are decoded."""
    file = settings.path
    rows: list[Json] = []
    lines: list[int] = []
    offsets: list[int] = []
    names: dict[str, None] = {}  # every key, in the order found
    offset = cells = 0
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
                    names.update(dict.fromkeys(row))
                    cells += len(row)
                    rows.append(row)
                    lines.append(number)
                    offsets.append(offset)
                offset += len(line)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.", "Check its permissions.") from error
    if len(names) * len(rows) > MOST_EMPTY * cells + 10**6:
        raise InputError(
            f"{file}: {len(names):,} different keys in {len(rows):,} lines, nearly all of them missing in each.",
            "Give every line the same keys; put the rest into one text.",
        )
    embedded = _embedded(names, rows, settings)
    if embedded is not None:
        names.pop(embedded)
    arrays = [_array([row.get(name) for row in rows]) for name in names]
    table = Table(
        pa.table(arrays, names=list(names)) if names else pa.table({}),
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


def _embedded(names: dict[str, None], rows: list[Json], settings: SourceSettings) -> str | None:
    if settings.image_column is not None:
        if settings.image_column not in names:
            raise InputError(f"{settings.path}: no column {settings.image_column!r}.", "Check --image-column.")
        return settings.image_column
    if "image" not in names or settings.path_column in names:
        return None
    return None if any(_is_path(row["image"]) for row in rows if "image" in row) else "image"


def _array(values: list[Any]) -> pa.Array:
    """Return a column with its own type; as JSON text if the types differ, or for objects and lists."""
    try:
        if not any(isinstance(value, list | dict) for value in values):
            return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    texts = [v if isinstance(v, str) or v is None else json.dumps(v, ensure_ascii=False) for v in values]
    return pa.array(texts, pa.string())
