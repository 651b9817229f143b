"""report.parquet to disk and back: written whole or not at all, in row groups, the same bytes for the same run."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from noisesieve.errors import InputError, StateError
from noisesieve.files import replacing, sha256_of
from noisesieve.report.schema import COLUMNS, HISTORY, KEY, SCHEMA_VERSION
from noisesieve.report.table import Findings

if TYPE_CHECKING:
    import pandas as pd

ROW_GROUP = 65_536
COMPARED_IDS = 20_000  # with a typo; more would take seconds
MOST_MARGINS = 10**7  # rows times epochs in course.parquet


@dataclass(frozen=True)
class Report:
    """A sieve report: one row an example, in the order of the dataset."""

    table: pa.Table
    facts: dict[str, Any]  # the file's own metadata: classes, prior, settings, fingerprint
    path: Path

    def to_pandas(self) -> pd.DataFrame:
        """The table as a data frame."""
        frame: pd.DataFrame = self.table.to_pandas()
        return frame

    @property
    def verdicts(self) -> npt.NDArray[np.object_]:
        """Every row's verdict as a word."""
        words: npt.NDArray[np.object_] = self.table["verdict"].cast(pa.string()).to_numpy(zero_copy_only=False)
        return words

    @property
    def corrupted(self) -> pa.Table:
        """The suspects, most suspicious first; a waived row is none."""
        mask = pc.equal(self.table["verdict"].cast(pa.string()), "corrupted")
        return self.table.filter(pc.and_(mask, pc.invert(self.table["waived"]))).sort_by("rank")

    @property
    def summary(self) -> dict[str, Any]:
        """The run's summary.json."""
        file = self.path.parent / "summary.json"
        try:
            document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: missing or damaged.", "Scan the dataset again with --force.") from error
        return document


def write_table(table: pa.Table, path: Path, facts: dict[str, Any] | None = None) -> None:
    """Write a table, zstd, in row groups, one group in memory at a time."""
    if facts is not None:
        text = json.dumps({"schema_version": SCHEMA_VERSION, **facts}, sort_keys=True, ensure_ascii=True)
        table = table.replace_schema_metadata({KEY: text.encode()})
    with replacing(path) as file, pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
        for start in range(0, max(1, len(table)), ROW_GROUP):
            writer.write_table(table.slice(start, ROW_GROUP), row_group_size=ROW_GROUP)


def write_history(history: list[dict[str, Any]], path: Path) -> None:
    """One row an epoch."""
    write_table(pa.Table.from_pylist(history, schema=HISTORY), path)


def write_course(found: Findings, path: Path) -> None:
    """Every row's margin over the last epochs; where that is much, only of rows that were ever on the wrong side."""
    course = found.scores.course
    if course is None:
        path.unlink(missing_ok=True)  # an older run's
        return
    rows = np.arange(course.shape[1])
    if course.size > MOST_MARGINS:
        rows = np.flatnonzero((course >= 0).any(axis=0) | found.verdicts.corrupted)
    flat = pa.array(np.ascontiguousarray(course[:, rows].T).reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(flat, course.shape[0])
    write_table(pa.table({"row": pa.array(found.rows[rows]), "margins": lists}), path)


def read_report(path: str | Path) -> Report:
    """Open the report of a run folder, or a report file itself."""
    file = Path(path)
    if file.is_dir():
        file = file / "report.parquet"
    if not file.exists():
        raise InputError(f"{file}: no report there.", "Give a run folder that `noisesieve scan` has finished.")
    _verify(file)
    try:
        table = pq.ParquetFile(file).read()
    except (pa.ArrowException, OSError) as error:
        if file.suffix != ".parquet":
            raise InputError(
                f"{file}: not a noisesieve report.", "Give a run folder, or its report.parquet."
            ) from error
        raise StateError(f"{file}: damaged ({error}).", "Scan the dataset again.") from error
    metadata = table.schema.metadata or {}
    if KEY not in metadata or "row" not in table.column_names or "probabilities" in table.column_names:
        raise InputError(f"{file}: not a noisesieve report.", "Give a run folder, or its report.parquet.")
    facts = json.loads(metadata[KEY])
    if facts["schema_version"] > SCHEMA_VERSION:
        raise StateError(
            f"{file}: schema version {facts['schema_version']}; this noisesieve reads up to {SCHEMA_VERSION}.",
            "Upgrade noisesieve.",
        )
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise StateError(f"{file}: the column {missing[0]!r} is missing.", "Scan the dataset again.")
    return Report(table, facts, file)


def find_rows(report: Report, names: Sequence[str]) -> list[int]:
    """The rows with these ids or paths, or numbers."""
    known = {path: row for row, path in reversed(list(enumerate(report.table["path"].to_pylist())))}
    known |= {name: row for row, name in enumerate(report.table["id"].to_pylist())}
    return [known[name] if name in known else find_row(report, name) for name in names]


def find_row(report: Report, name: str) -> int:
    """The row with this id, path or number; where there is none, the most similar ids are named."""
    ids, paths = report.table["id"].to_pylist(), report.table["path"].to_pylist()
    for spelled in (name, os.path.normpath(name.replace("\\", "/"))):
        for column in (ids, paths):
            if spelled in column:
                return int(column.index(spelled))
    if name.isdecimal() and int(name) < len(ids):
        return int(name)
    whole = [i for i, path in enumerate(paths) if path and name.endswith(f"/{path}")] if os.path.isabs(name) else []
    if len(whole) == 1:
        return whole[0]
    ends = [known for known in ids if known.endswith(f"/{name}")]
    close = ends or difflib.get_close_matches(name, ids[:COMPARED_IDS], n=3)
    hint = f"Did you mean {' or '.join(map(repr, close[:3]))}?" if close else "Ids are in the report's column id."
    raise InputError(f"{name!r}: no such row in the run.", hint)


def _verify(file: Path) -> None:
    """Where the report lies in its run folder, its bytes must be those that the run wrote."""
    try:
        known = json.loads((file.parent / "run.json").read_text(encoding="utf-8"))
        marks = (known["files"].get(file.name), known.get("pending", {}).get(file.name))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # a report on its own, or a run that is not complete
    if marks[0] is not None and sha256_of(file) not in marks:
        raise StateError(f"{file}: changed since the run wrote it.", "Scan the dataset again with --force.")
