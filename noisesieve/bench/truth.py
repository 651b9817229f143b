"""The right labels, where somebody knows them: a file beside the dataset, or a column of its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

from noisesieve.errors import InputError, UsageError
from noisesieve.watch import Watcher

COLUMN = "true_label"  # what `inject` writes, and what is looked for where nothing is said
KEYS = ("id", "path")


@dataclass(frozen=True)
class Rows:
    """What truth can be matched with: a report's or an index's rows."""

    ids: Sequence[str]
    paths: Sequence[str | None]
    columns: pa.Table | None  # the user's other columns


def find(rows: Rows, file: Path | None, column: str | None, watcher: Watcher) -> list[str | None]:
    """The right label of every row, None where it is not known."""
    if file is not None:
        return _from_file(rows, file, column, watcher)
    names = [] if rows.columns is None else rows.columns.column_names
    wanted = column or COLUMN
    if rows.columns is None or wanted not in names:
        problem = f"no column {wanted!r}" if column else "nobody says which labels are right"
        has = f" There are: {', '.join(names)}." if column and names else ""
        raise UsageError(
            f"Truth: {problem}.{has}",
            "Give --truth FILE (columns path and label), or --truth-column with a column of the table.",
        )
    return texts(rows.columns[wanted])


def texts(column: pa.ChunkedArray) -> list[str | None]:
    """Labels as the sources read them: 3.0 is the label 3, an empty cell is no label."""
    if pa.types.is_floating(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return [text or None for text in column.cast(pa.string()).to_pylist()]


def _from_file(rows: Rows, file: Path, column: str | None, watcher: Watcher) -> list[str | None]:
    frame = _read(file)
    key = next((name for name in KEYS if name in frame.columns), None)
    label = column or next((name for name in (COLUMN, "label") if name in frame.columns), None)
    if key is None or label is None or label not in frame.columns:
        lacking = "id or path" if key is None else column or "true_label or label"
        raise InputError(
            f"{file}: no column {lacking}. It has: {', '.join(map(str, frame.columns)) or 'none'}.",
            "A truth file has the columns path and label.",
        )
    known: dict[str, str] = {}
    for line, (name, value) in enumerate(zip(frame[key], frame[label], strict=True), start=2):
        if known.setdefault(name, value) != value:
            raise InputError(f"{file}:{line}: {name!r} is {value!r} here and {known[name]!r} before.", "Keep one.")
    found = [known.get(name) or known.get(path or "") or None for name, path in zip(rows.ids, rows.paths, strict=True)]
    if not any(found):
        example = rows.paths[0] or rows.ids[0]
        raise InputError(
            f"{file}: none of its {len(known):,} entries is a row of the run, where paths look like {example!r}.",
            "Paths in a truth file are relative to the dataset's root.",
        )
    if strangers := known.keys() - set(rows.ids) - {path for path in rows.paths if path is not None}:
        watcher.warn(f"{file}: {len(strangers):,} entries belong to no row, such as {min(strangers)!r}.")
    return found


def _read(file: Path) -> pd.DataFrame:
    try:
        if file.suffix.lower() in (".parquet", ".pq"):
            frame = pd.read_parquet(file)
            return frame.astype(object).where(frame.notna(), "").astype(str)
        separator = "\t" if file.suffix.lower() == ".tsv" else ","
        return pd.read_csv(file, sep=separator, dtype=str, keep_default_na=False)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(
            f"{file}: cannot be read ({reason}).", "Give a CSV with the columns path and label."
        ) from error
