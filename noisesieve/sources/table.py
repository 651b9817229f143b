"""Table → Index, for every table format: find the columns, refuse tables that are not one label per image."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from noisesieve.core.columns import Texts
from noisesieve.core.errors import InputError
from noisesieve.core.records import Bools, ImageLocation, Index, Ints
from noisesieve.core.text import file_of, leads_out
from noisesieve.sources.source_settings import SourceSettings

_BOXES = (
    {"bbox"},
    {"bboxes"},
    {"boxes"},
    {"objects"},
    {"xmin", "ymin", "xmax", "ymax"},
    {"x_min", "y_min", "x_max", "y_max"},
)
TABLE_SUFFIXES = dict.fromkeys((".jsonl", ".ndjson"), "jsonl") | dict.fromkeys((".parquet", ".pq"), "parquet")
TABLE_SUFFIXES = {".csv": "csv", ".tsv": "tsv", **TABLE_SUFFIXES}
PATH_COLUMNS = ("path", "filename", "file_name", "image_path", "image")  # the first is the default; others are known
LABEL_COLUMNS = ("label", "class", "category", "target")
COLUMNS_NAMED = 50  # in an error
_TRUE = frozenset(("1", "true", "yes", "y", "t"))
_FALSE = frozenset(("0", "false", "no", "n", "f", ""))


@dataclass(frozen=True)
class Table:
    """A table as read: its columns without image bytes, the line of each row, and where embedded images are."""

    columns: pa.Table
    lines: Ints | None  # first line of each row, from 1; None where the format has no lines
    embedded: str | None = None  # the column that holds image bytes
    position: Callable[[int], int] = int  # row → position of its image cell
    left_out: list[str] = field(default_factory=list)  # other columns of bytes, which are not carried


def to_index(table: Table, settings: SourceSettings, kind: str) -> Index:
    """Return the index of a table. Errors name the line."""
    file = settings.path
    names = table.columns.column_names
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise InputError(f"{file}: two columns are called {twice[0]!r}.", "Rename one of them.")
    _refuse_detection(settings, names)
    settings, used_names = _recognise(table, settings, names)
    root = settings.root if settings.root is not None else file.parent
    labels = _labels(table, settings)
    used = {settings.label_column}
    paths = Texts(pa.nulls(len(labels), pa.string()))
    if table.embedded is not None:
        container, column, position = os.fspath(file), table.embedded, table.position
        locate: Callable[[int], ImageLocation] = lambda i: ImageLocation(container, column, position(i))  # noqa: E731
    elif not settings.images and settings.path_column not in names:
        locate = lambda i: ImageLocation("")  # noqa: E731
    else:
        used.add(settings.path_column)
        given = _texts(table, settings.path_column, settings)
        refuse_paths_outside(
            root, given, allow_outside=settings.allow_outside, name=lambda row: position_of(table, settings, row)
        )
        paths = given
        base = os.fspath(root)
        locate = lambda i: ImageLocation(file_of(base, given[i]))  # noqa: E731
    splits = None
    if "split" in names and "split" not in used:
        used.add("split")
        splits = Texts(_texts(table, "split", settings, empty=True).array, few=True)
    left_out = [f"columns of bytes, not carried: {', '.join(table.left_out)}"] if table.left_out else []
    return Index(
        name=file.stem,
        kind=kind,
        root=root,
        ids=_ids(table, settings, paths, used),
        paths=paths,
        labels=labels,
        locate=locate,
        lines=table.lines,
        splits=splits,
        trusted=_trusted(table, settings),
        carried=table.columns.drop_columns(sorted(used)),
        label_column=settings.label_column,
        notes=[*used_names, *left_out],
        warnings=_several_in_one(labels),
    )


def _recognise(table: Table, settings: SourceSettings, names: list[str]) -> tuple[SourceSettings, list[str]]:
    """Return the settings with the columns of paths and labels, and notes about those known by another name.

    Every column that cannot be found is named in one error.
    """
    recognised: dict[str, Any] = {}
    notes, missing = [], []
    wanted: dict[str, tuple[str, ...]] = {"label_column": LABEL_COLUMNS}
    if table.embedded is None and settings.images:
        wanted["path_column"] = PATH_COLUMNS
    for option, others in wanted.items():
        name = getattr(settings, option)
        known = [other for other in others if other in names] if name == others[0] else []
        if name in names:
            continue
        if len(known) == 1:
            recognised[option] = known[0]
            notes.append(f"the column {known[0]!r} is taken for {name!r}")
        else:
            missing.append((option, name))
    missing += [
        (option, name)
        for option in ("id_column", "trusted_column")
        if (name := getattr(settings, option)) is not None and name not in names
    ]
    if missing:
        flags = " and ".join("--" + option.replace("_", "-") for option, _ in missing)
        absent = " and no column ".join(repr(name) for _, name in missing)
        there = ", ".join([*map(repr, names[:COLUMNS_NAMED]), *(["…"] if len(names) > COLUMNS_NAMED else [])]) or "none"
        raise InputError(f"{settings.path}: no column {absent}. It has: {there}.", f"Choose with {flags}.")
    return replace(settings, **recognised), notes


def _several_in_one(labels: Texts) -> list[str]:
    """Return a note if some labels look like several classes in one cell, such as `dress|red`."""
    odd = {label for label in labels.distinct() if "|" in label or ";" in label}
    if not odd:
        return []
    count = int(labels.is_in(odd).sum())
    return [
        f"{count:,} labels look like several classes in one cell, such as {min(odd)!r}: each is taken as one class."
    ]


def position_of(table: Table, settings: SourceSettings, row: int) -> str:
    """Return `labels.csv:812`, or `labels.parquet, row 811` for formats without lines."""
    if table.lines is not None:
        return f"{settings.path}:{table.lines[row]}"
    return f"{settings.path}, row {row}"


def _labels(table: Table, settings: SourceSettings) -> Texts:
    column = table.columns[settings.label_column]
    if pa.types.is_nested(column.type):
        raise InputError(
            f"{settings.path}: column {settings.label_column!r} contains lists: a multi-label dataset.",
            "noisesieve needs one label per image.",
        )
    labels = Texts(_texts(table, settings.label_column, settings).array, few=True)
    distinct = set(labels.distinct())
    for label in distinct:
        if _is_list(label) or any(_joins(label, separator, distinct) for separator in "|;,"):
            row = labels.find(label)
            raise InputError(
                f"{position_of(table, settings, row)}: the label {label!r} names several classes (multi-label).",
                "noisesieve needs one label per image.",
            )
    return labels


def _is_list(label: str) -> bool:
    if not (label.startswith("[") and label.endswith("]")):
        return False
    try:
        return isinstance(json.loads(label.replace("'", '"')), list)
    except (ValueError, RecursionError):
        return False


def _joins(label: str, separator: str, distinct: set[str]) -> bool:
    parts = label.split(separator)
    return len(parts) > 1 and all(part and part in distinct for part in parts)


def _texts(table: Table, column: str, settings: SourceSettings, *, empty: bool = False) -> Texts:
    """Return a column as strings, exactly as written. A missing value is an error unless `empty`."""
    values = table.columns[column]
    if pa.types.is_floating(values.type) and column == settings.label_column:
        try:
            values = values.cast(pa.int64())  # 3.0, as in columns that once had gaps, is the label 3
        except pa.ArrowInvalid as error:
            raise InputError(
                f"{settings.path}: column {column!r} contains fractions, not labels.",
                "Choose another with --label-column.",
            ) from error
    try:
        texts = values.cast(pa.large_string())  # the same array, if it is one already
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(
            f"{settings.path}: column {column!r} ({values.type}) cannot be read as text.", "Convert it to strings."
        ) from error
    texts = texts.fill_null("") if texts.null_count else texts
    if not empty and (row := pc.index(texts, pa.scalar("", pa.large_string())).as_py()) >= 0:
        raise InputError(
            f"{position_of(table, settings, row)}: no {column}.", "Fill it in, or leave the row out of the table."
        )
    return Texts(texts)


def refuse_paths_outside(
    root: Path,
    paths: Sequence[str],
    *,
    allow_outside: bool,
    name: Callable[[int], str],
    files: Sequence[str] | None = None,
) -> None:
    """Refuse a path that leads out of the root, as it is written or through a symbolic link: for every source.

    `name` returns the place of a row, for the error; `files` are what will be opened, if not what a table's paths name.
    """
    if allow_outside:
        return
    inside, folders = os.path.realpath(root), dict[str, bool]()  # folder → whether it is inside the root
    base = os.fspath(root)
    for row, (path, named) in enumerate(zip(paths, repeat(None) if files is None else files, strict=False)):
        file = file_of(base, path) if named is None else named
        if leads_out(path) or _links_out(file, inside, folders):
            way_out = "Set --root to the folder above all images" if files is None else "Remove the link"
            raise InputError(
                f"{name(row)}: the path {path!r} leads out of the dataset's folder.",
                f"{way_out}, or pass --allow-outside.",
            )


def _links_out(file: str, inside: str, folders: dict[str, bool]) -> bool:
    """Return True if a file is outside the folder once links are resolved. Each folder is resolved once."""
    try:
        if os.path.islink(file):
            return not _is_within(os.path.realpath(file), inside)
        folder = os.path.dirname(file)
        if folder not in folders:
            folders[folder] = _is_within(os.path.realpath(folder), inside)
        return not folders[folder]
    except (OSError, ValueError):
        return False  # a name that no file can have: unreadable, not outside


def _is_within(path: str, inside: str) -> bool:
    return os.path.commonpath((path, inside)) == inside


def _ids(table: Table, settings: SourceSettings, paths: Texts, used: set[str]) -> Sequence[str]:
    column = settings.id_column
    if column is not None:
        used.add(column)
        ids = _texts(table, column, settings)
        if (row := ids.first_repeated()) is not None:
            raise InputError(
                f"{position_of(table, settings, row)}: the id {ids[row]!r} is also that of row {ids.find(ids[row])}.",
                "Ids must be unique: choose another --id-column.",
            )
        return ids
    if len(paths) and paths.array.null_count == len(paths):
        return Texts(pa.array(np.arange(len(paths))).cast(pa.large_string()))
    if paths.first_repeated() is None:
        return paths
    taken = {path for path in paths if path is not None}
    seen: set[str] = set()
    unique: list[str] = []
    for row, path in enumerate(paths):
        name = str(row) if path is None else path
        if name in seen:  # the same file is listed again: its own row, its own id
            name = f"{path}#{row}"
            while name in taken:
                name += "#"
        seen.add(name)
        unique.append(name)
    return unique


def _trusted(table: Table, settings: SourceSettings) -> Bools | None:
    column = settings.trusted_column
    if column is None:
        return None
    words = Texts(pc.utf8_lower(pc.utf8_trim_whitespace(_texts(table, column, settings, empty=True).array)), few=True)
    codes = words.codes([*sorted(_TRUE), *sorted(_FALSE)])
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        raise InputError(
            f"{position_of(table, settings, row)}: {column} is {words[row]!r}, neither yes nor no.",
            "Use true / false, 1 / 0 or yes / no.",
        )
    return codes < len(_TRUE)


def _refuse_detection(settings: SourceSettings, names: list[str]) -> None:
    lower = {name.lower() for name in names}
    for boxes in _BOXES:
        if boxes <= lower and not boxes <= {settings.label_column.lower()}:
            raise InputError(
                f"{settings.path}: looks like a detection table (columns {', '.join(sorted(boxes))}).",
                "noisesieve needs one label per image: crop the objects first, or drop those columns.",
            )
