"""Write and read report.parquet: atomically, in row groups, with the same bytes for the same run."""

from __future__ import annotations

import difflib
import functools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from noisesieve.core.documents import from_json
from noisesieve.core.errors import InputError, StateError
from noisesieve.core.files import Document, Json, atomic_write
from noisesieve.core.parquet_file import TooLarge, read_parquet
from noisesieve.core.records import Bools
from noisesieve.core.untrusted import read_json
from noisesieve.learn.evidence import EpochRow
from noisesieve.report.build_table import ReportInputs
from noisesieve.report.run import verify_written
from noisesieve.report.schema import COLUMNS, HISTORY, KEY, NEVER_NULL, SCORED
from noisesieve.report.summary import SCHEMA_VERSION, Summary

if TYPE_CHECKING:
    import pandas as pd

ROW_GROUP = 65_536
COMPARED_IDS = 20_000  # ids compared with a misspelled one; more would take seconds
MOST_MARGINS = 10**7  # rows times epochs up to which margin_history.parquet has every row


@dataclass(frozen=True)
class ReportFacts:
    """The metadata of report.parquet."""

    version: str
    classes: list[str]
    prior: list[float]
    beta: float
    sieve_eps: float
    settings: Json  # the settings that change results
    threads: int
    fingerprint: str
    label_column: str

    def to_document(self) -> Document:
        """Return the metadata as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Version:
    schema_version: int


@dataclass(frozen=True)
class _Vectors:
    kind: str
    sha256: str
    classes: list[str]


@dataclass(frozen=True)
class Report:
    """The report of a scan or a check: one row per image, in the order of the dataset."""

    table: pa.Table
    facts: ReportFacts
    path: Path
    _summary: Summary | None = None  # read from summary.json when needed

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a data frame."""
        frame: pd.DataFrame = self.table.to_pandas()
        return frame

    @functools.cached_property
    def verdicts(self) -> npt.NDArray[np.object_]:
        """The verdict of every row."""
        verdicts: npt.NDArray[np.object_] = self.table["verdict"].cast(pa.string()).to_numpy(zero_copy_only=False)
        return verdicts

    @property
    def corrupted(self) -> pa.Table:
        """The flagged rows that are not waived, most suspicious first."""
        return self.suspects(0.0)

    def suspects(self, min_probability: float) -> pa.Table:
        """Return the flagged rows that are not waived and wrong with at least this probability, highest rank first."""
        return self.table.filter(pa.array(self.is_suspect(min_probability))).sort_by("rank")

    def is_suspect(self, min_probability: float) -> Bools:
        """Return (N,) which rows `suspects` has."""
        flagged: Bools = (self.verdicts == "corrupted") & ~self.table["waived"].to_numpy(zero_copy_only=False)
        probability = self.table["corruption_probability"].to_numpy(zero_copy_only=False).astype(np.float64)
        likely: Bools = flagged & ~(probability < min_probability)
        return likely

    def read_beside(self, name: str) -> pa.Table | None:
        """Return another table of the run, or None if the run has none. A changed or damaged one is refused."""
        file = self.path.parent / name
        verify_written(file)
        if not file.exists():
            return None
        try:
            return read_parquet(file)[0]
        except (pa.ArrowException, OSError, TooLarge) as error:
            raise StateError(f"{file}: damaged ({error}).", "Scan again with --force.") from error

    @functools.cached_property
    def summary(self) -> Summary:
        """The run's summary.json."""
        if self._summary is not None:
            return self._summary
        file = self.path.parent / "summary.json"
        verify_written(file)
        try:
            return Summary.from_document(read_json(file))
        except (OSError, ValueError, RecursionError) as error:
            raise StateError(
                f"{file}: missing or damaged ({error}).", "Scan the dataset again with --force."
            ) from error


def write_table(table: pa.Table, path: Path, facts: Json | None = None) -> None:
    """Write a table with zstd compression, one row group at a time."""
    if facts is not None:
        text = json.dumps({"schema_version": SCHEMA_VERSION, **facts}, sort_keys=True, ensure_ascii=True)
        table = table.replace_schema_metadata({KEY: text.encode()})
    with atomic_write(path) as file, pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
        for start in range(0, max(1, len(table)), ROW_GROUP):
            writer.write_table(table.slice(start, ROW_GROUP), row_group_size=ROW_GROUP)


def write_history(history: Sequence[EpochRow], path: Path) -> None:
    """Write history.parquet, one row per epoch."""
    write_table(pa.Table.from_pylist([vars(row) for row in history], schema=HISTORY), path)


def write_early_clean(inputs: ReportInputs, path: Path) -> None:
    """Write the clean / corrupted split that `retrain` uses, by row of the report. Only the preset cifar has one."""
    if inputs.scores.early_clean is not None:
        clean = np.zeros(len(inputs.index), dtype=np.bool_)
        clean[inputs.rows] = inputs.scores.early_clean
        write_table(pa.table({"clean": clean}), path)


def write_margin_history(inputs: ReportInputs, path: Path) -> None:
    """Write the margin of every row in the last epochs; of a large dataset only of rows that were ever flagged."""
    margin_history = inputs.scores.margin_history
    if margin_history is None:
        return
    rows = np.arange(margin_history.shape[1])
    if margin_history.size > MOST_MARGINS:
        rows = np.flatnonzero((margin_history >= 0).any(axis=0) | inputs.verdicts.corrupted)
    flat = pa.array(np.ascontiguousarray(margin_history[:, rows].T).reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(flat, margin_history.shape[0])
    write_table(pa.table({"row": pa.array(inputs.rows[rows]), "margins": lists}), path)


def read_report(path: str | Path) -> Report:
    """Open the report of a run folder, or a report file."""
    return _read(path, None)


def read_columns(path: str | Path, *columns: str) -> Report:
    """Open a report with some of its columns only."""
    return _read(path, list(columns))


def _read(path: str | Path, columns: list[str] | None) -> Report:
    """Open a report with some of its columns, or with all."""
    file = Path(path)
    if file.is_dir():
        file = file / "report.parquet"
    verify_written(file)
    if not file.exists():
        raise InputError(f"{file}: no such report.", "Give a run folder that `noisesieve scan` has finished.")
    try:
        table, schema = read_parquet(file, columns)
    except (pa.ArrowException, OSError, TooLarge) as error:
        if file.suffix != ".parquet":
            raise InputError(
                f"{file}: not a noisesieve report.", "Give a run folder, or its report.parquet."
            ) from error
        raise StateError(f"{file}: damaged ({error}).", "Scan the dataset again.") from error
    metadata = schema.metadata or {}
    if KEY not in metadata or "row" not in schema.names or "probabilities" in schema.names:
        raise InputError(f"{file}: not a noisesieve report.", "Give a run folder, or its report.parquet.")
    try:
        document = json.loads(metadata[KEY])
        version = from_json(_Version, document).schema_version
    except (ValueError, RecursionError) as error:
        raise StateError(f"{file}: its metadata is damaged ({error}).", "Scan the dataset again.") from error
    if version > SCHEMA_VERSION:
        raise StateError(
            f"{file}: schema version {version}; this noisesieve reads up to {SCHEMA_VERSION}.",
            "Upgrade noisesieve.",
        )
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise StateError(f"{file}: the column {missing[0]!r} is missing.", "Scan the dataset again.")
    _require_columns(table, file)
    try:
        facts = from_json(ReportFacts, document, "its metadata")
        if "vectors" in facts.settings:
            from_json(_Vectors, facts.settings["vectors"], "vectors")
        if not facts.classes:
            raise ValueError("there are no classes")
        return Report(table, facts, file)
    except ValueError as error:
        raise StateError(f"{file}: {error}.", "Scan the dataset again.") from error


def _require_columns(table: pa.Table, file: Path) -> None:
    """Refuse a report whose columns have other types than ours, or whose rows are not numbered."""
    scored = table["rank"].is_valid() if "rank" in table.column_names else None
    for name in table.column_names:
        wanted = COLUMNS.get(name)
        if wanted is not None and not table[name].type.equals(wanted):
            raise StateError(f"{file}: the column {name!r} is {table[name].type}.", "Scan the dataset again.")
        missing = table[name].is_null() if name in NEVER_NULL else None
        if name in SCORED and scored is not None:
            missing = pc.and_(table[name].is_null(), scored)
        if missing is not None and pc.any(missing).as_py():
            raise StateError(f"{file}: a cell of {name!r} is empty.", "Scan the dataset again.")
    if "row" in table.column_names and not pc.all(pc.equal(table["row"], pa.array(np.arange(len(table))))).as_py():
        raise StateError(f"{file}: its rows are not in order.", "Scan the dataset again.")


def find_rows(report: Report, names: Sequence[str]) -> list[int]:
    """Return the rows with these ids, paths or row numbers."""
    known = {path: row for row, path in reversed(list(enumerate(report.table["path"].to_pylist())))}
    known |= {name: row for row, name in enumerate(report.table["id"].to_pylist())}
    return [known[name] if name in known else find_row(report, name) for name in names]


def find_row(report: Report, name: str) -> int:
    """Return the row with this id, path or row number. The error for an unknown one names similar ids."""
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
