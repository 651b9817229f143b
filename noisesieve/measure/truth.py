"""Known right labels: from a file, or from a column of the dataset's table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from noisesieve.core.csv_file import csv_separator, read_csv_file
from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.parquet_file import read_parquet
from noisesieve.core.progress import Session
from noisesieve.core.untrusted import read_regular
from noisesieve.measure.truth_settings import TruthSettings

COLUMN = "true_label"  # the column that `inject` writes, and the default
KEYS = ("id", "path")


@dataclass(frozen=True)
class LabelledRows:
    """The rows of a report or of an index, for matching them with a truth."""

    ids: Sequence[str]
    paths: Sequence[str | None]
    labels: Sequence[str]
    columns: pa.Table | None  # the user's other columns


def find_truth(rows: LabelledRows, settings: TruthSettings, session: Session) -> list[str | None]:
    """Return the right label of every row, None where it is not known."""
    file, column = settings.truth, settings.truth_column
    right = _from_column(rows, column) if file is None else _from_file(rows, file, column, session)
    classes = set(rows.labels)
    right = [None if label is None else _as_class(label, classes) for label in right]
    named = {label for label in right if label is not None}
    if strange := named - classes:
        text = f"{len(strange):,} right labels are not classes of this dataset, such as {min(strange)!r}"
        if strange == named:
            raise InputError(f"Truth: {text}: its classes are {_few(classes)}.", "Is it the right column or file?")
        session.warn(f"{text}.")
    return right


def _from_column(rows: LabelledRows, column: str | None) -> list[str | None]:
    names = [] if rows.columns is None else rows.columns.column_names
    wanted = column or COLUMN
    if rows.columns is None or wanted not in names:
        problem = f"no column {wanted!r}" if column else "the right labels are not known"
        has = f" The columns are: {', '.join(names)}." if column and names else ""
        raise UsageError(
            f"Truth: {problem}.{has}",
            "Give --truth FILE (columns path and label), or --truth-column with a column of the table. "
            "Without any truth: noisesieve evaluate RUN --plant 5%.",
        )
    return texts(rows.columns[wanted], f"Column {wanted!r}")


def _as_class(label: str, classes: set[str]) -> str:
    """Return a label as the dataset spells it: ` 3 ` and `3.0`, as in columns with gaps, are the class 3."""
    for spelling in (label, label.strip(), label.strip().removesuffix(".0")):
        if spelling in classes:
            return spelling
    return label


def _few(names: set[str], most: int = 5) -> str:
    shown = [repr(name) for name in sorted(names)[:most]]
    return ", ".join(shown) + (" …" if len(names) > most else "")


def texts(column: pa.ChunkedArray, name: str) -> list[str | None]:
    """Return labels as the sources read them: 3.0 is the label 3, an empty cell is None."""
    try:
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column).cast(pa.int64())
        return [text or None for text in column.cast(pa.string()).to_pylist()]
    except pa.ArrowException as error:
        raise InputError(
            f"{name} ({column.type}) contains no labels.", "Choose another with --truth-column."
        ) from error


def _from_file(rows: LabelledRows, file: Path, column: str | None, session: Session) -> list[str | None]:
    table = _read(file)
    names = table.column_names
    keys = [name for name in KEYS if name in names]
    label = column or next((name for name in (COLUMN, "label") if name in names), None)
    if not keys or label is None or label not in names:
        lacking = "id or path" if not keys else column or "true_label or label"
        raise InputError(
            f"{file}: no column {lacking}. It has: {', '.join(names) or 'none'}.",
            "A truth file has the columns path and label.",
        )
    matched = [_match(rows, table, file, key, label) for key in keys]
    labels, known = max(matched, key=lambda pair: sum(value is not None for value in pair[0]))
    if not any(labels):
        example = rows.paths[0] or rows.ids[0]
        raise InputError(
            f"{file}: none of its {len(known):,} entries matches a row of the run, where paths look like {example!r}.",
            "Paths in a truth file are relative to the dataset's root.",
        )
    if unmatched := known.keys() - set(rows.ids) - {path for path in rows.paths if path is not None}:
        session.warn(f"{file}: {len(unmatched):,} entries match no row, such as {min(unmatched)!r}.")
    return labels


def _match(
    rows: LabelledRows, table: pa.Table, file: Path, key: str, label: str
) -> tuple[list[str | None], dict[str, str]]:
    """Return the right label of every row by one key column, and all entries of the file by that key."""
    known: dict[str, str] = {}
    keys, values = (texts(table[wanted], f"{file}: column {wanted!r}") for wanted in (key, label))
    for line, (name, value) in enumerate(zip(keys, values, strict=True), start=2):
        if name is None or value is None:
            continue
        name = name.removeprefix("./")
        if known.setdefault(name, value) != value:
            raise InputError(f"{file}:{line}: {name!r} is {value!r} here, but {known[name]!r} before.", "Keep one.")
    return [known.get(name) or known.get(path or "") for name, path in zip(rows.ids, rows.paths, strict=True)], known


def _plain_cells(row: dict[str, object]) -> dict[str, object]:
    """Return a row without objects and lists, which are no labels."""
    return {name: value for name, value in row.items() if not isinstance(value, list | dict)}


def _read(file: Path) -> pa.Table:
    if not file.is_file():
        raise InputError(f"{file}: {'a folder' if file.is_dir() else 'no such file'}.", "Give a table of right labels.")
    try:
        if file.suffix.lower() in (".parquet", ".pq"):
            return read_parquet(file)[0]
        if file.suffix.lower() in (".jsonl", ".ndjson"):
            lines = read_regular(file).decode("utf-8-sig").splitlines()
            return pa.Table.from_pylist([_plain_cells(json.loads(line)) for line in lines if line.strip()])
        cells = read_csv_file(file, csv_separator(file))
        cells.refuse_repeated_columns(file)
        return pa.table({name: pa.array(cells.column(name), pa.string()) for name in cells.header})
    except (OSError, ValueError, TypeError, pa.ArrowException, AttributeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(
            f"{file}: cannot be read ({reason}).", "Give a CSV with the columns path and label."
        ) from error
