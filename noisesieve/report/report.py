"""Read report.parquet: by columns and by rows, so that millions of rows need little memory."""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from noisesieve.core.columns import HASH_TYPE, Hashes, Texts
from noisesieve.core.documents import from_json
from noisesieve.core.errors import InputError, StateError
from noisesieve.core.files import Document, Json
from noisesieve.core.memory import release_memory
from noisesieve.core.parquet_file import ParquetTable, TooLarge, read_parquet
from noisesieve.core.records import Bools, Ints
from noisesieve.core.untrusted import read_json
from noisesieve.report.run import verify_written
from noisesieve.report.schema import COLUMNS, KEY, NEVER_NULL, SCORED
from noisesieve.report.summary import SCHEMA_VERSION, Summary

if TYPE_CHECKING:
    import pandas as pd

COMPARED_IDS = 20_000  # ids compared with a misspelled one; more would take seconds


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
    """The report of a scan or a check: one row per image, in the order of the dataset.

    Columns are read from the file when they are asked for, and not kept: a report may have millions of rows.
    """

    facts: ReportFacts
    path: Path
    _rows: pa.Table | ParquetTable
    _summary: Summary | None = None  # read from summary.json when needed

    def __len__(self) -> int:
        return len(self._rows)

    @functools.cached_property
    def table(self) -> pa.Table:
        """All columns of all rows."""
        if isinstance(self._rows, pa.Table):
            return self._rows
        return self.columns(*self.column_names)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns: ours, then the user's own."""
        return list(self._rows.schema.names)

    def columns(self, *names: str) -> pa.Table:
        """Return some columns of all rows."""
        return self._verified(self._rows.select(names) if isinstance(self._rows, pa.Table) else self._read(names))

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of all rows."""
        return self.columns(name)[name]

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Return one column as an array; a missing number is NaN."""
        values: npt.NDArray[Any] = self.column(name).to_numpy()
        return values

    def texts(self, name: str) -> Texts:
        """Return one column of texts."""
        return Texts(self.column(name))

    @property
    def hashes(self) -> Hashes:
        """The content hash of every row."""
        table = self._rows
        groups = iter([table]) if isinstance(table, pa.Table) else table.groups(["sha256"])
        try:  # group by group: as texts they take twice the memory
            return Hashes(pa.chunked_array([Hashes(group["sha256"]).array for group in groups], HASH_TYPE))
        except ValueError as error:
            raise StateError(f"{self.path}: a cell of 'sha256' is no hash.", "Scan the dataset again.") from error

    def take(self, rows: Ints, *names: str) -> pa.Table:
        """Return some rows, in their order, with some columns or with all."""
        if isinstance(self._rows, pa.Table):
            return self._rows.select(names or self.column_names).take(pa.array(rows, pa.int64()))
        with self._damage_named():
            return self._verified(self._rows.take(rows, names or None), rows)

    def blocks_with(self, name: str, values: npt.NDArray[Any]) -> Iterator[pa.Table]:
        """Yield all rows, a row group at a time, with other values in one column. NaN becomes null."""
        groups = iter([self._rows]) if isinstance(self._rows, pa.Table) else self._rows.groups()
        first = 0
        for group in groups:
            place, part = group.schema.get_field_index(name), values[first : first + len(group)]
            field = group.schema.field(place)
            column = pa.array(part, field.type, from_pandas=part.dtype.kind == "f")
            yield group.set_column(place, field, column)
            first += len(group)

    def take_blocks(self, rows: Ints) -> Iterator[pa.Table]:
        """Yield some rows in ascending order with all columns, a row group at a time."""
        first = 0
        for group in [self._rows] if isinstance(self._rows, pa.Table) else self._rows.groups():
            own = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + len(group))]
            yield group if len(own) == len(group) else group.take(pa.array(own - first))
            first += len(group)

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a data frame."""
        frame: pd.DataFrame = self.table.to_pandas()
        return frame

    @functools.cached_property
    def verdicts(self) -> npt.NDArray[np.object_]:
        """The verdict of every row."""
        coded = self.column("verdict").unify_dictionaries().combine_chunks()
        coded = coded.chunk(0) if isinstance(coded, pa.ChunkedArray) else coded
        names = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
        verdicts: npt.NDArray[np.object_] = names[coded.indices.fill_null(len(names) - 1).to_numpy()]
        return verdicts

    @property
    def corrupted(self) -> pa.Table:
        """The flagged rows that are not waived, most suspicious first."""
        return self.suspects(0.0)

    def suspects(self, min_probability: float, *names: str) -> pa.Table:
        """Return the flagged rows that are not waived and wrong with at least this probability, highest rank first."""
        return self.take(self.suspect_rows(min_probability), *names)

    def suspect_rows(self, min_probability: float) -> Ints:
        """Return the rows of `suspects`, highest rank first."""
        rows = np.flatnonzero(self.is_suspect(min_probability))
        return rows[np.argsort(self.numbers("rank")[rows], kind="stable")]

    def is_suspect(self, min_probability: float) -> Bools:
        """Return (N,) which rows `suspects` has."""
        flagged: Bools = (self.verdicts == "corrupted") & ~self.numbers("waived")
        likely: Bools = flagged & ~(self.numbers("corruption_probability").astype(np.float64) < min_probability)
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

    def _read(self, names: Sequence[str]) -> pa.Table:
        assert isinstance(self._rows, ParquetTable)
        release_memory()  # of columns that were read before
        with self._damage_named():
            return self._rows.read(names).select(names)

    @contextlib.contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, TooLarge) as error:
            raise StateError(f"{self.path}: damaged ({error}).", "Scan the dataset again.") from error

    def _verified(self, table: pa.Table, rows: Ints | slice = slice(None)) -> pa.Table:
        """Refuse columns with an empty cell where ours have none. `rows` are those of the table."""
        for name in table.column_names:
            missing = table[name].null_count if name in NEVER_NULL else 0
            if name in SCORED and table[name].null_count:
                missing = pc.any(pc.and_(table[name].is_null(), pa.array(self._scored[rows]))).as_py()
            if missing:
                raise StateError(f"{self.path}: a cell of {name!r} is empty.", "Scan the dataset again.")
        return table

    @functools.cached_property
    def _scored(self) -> Bools:
        """(N,) True for rows with a rank."""
        ranks = self._rows["rank"] if isinstance(self._rows, pa.Table) else self._read(["rank"])["rank"]
        scored: Bools = ranks.is_valid().to_numpy()
        return scored


def read_report(path: str | Path) -> Report:
    """Open the report of a run folder, or a report file."""
    file = Path(path)
    if file.is_dir():
        file = file / "report.parquet"
    verify_written(file)
    if not file.exists():
        raise InputError(f"{file}: no such report.", "Give a run folder that `noisesieve scan` has finished.")
    try:
        rows = ParquetTable(file)
    except (pa.ArrowException, OSError, TooLarge) as error:
        if file.suffix != ".parquet":
            raise InputError(
                f"{file}: not a noisesieve report.", "Give a run folder, or its report.parquet."
            ) from error
        raise StateError(f"{file}: damaged ({error}).", "Scan the dataset again.") from error
    schema = rows.schema
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
    try:
        facts = from_json(ReportFacts, document, "its metadata")
        if "vectors" in facts.settings:
            from_json(_Vectors, facts.settings["vectors"], "vectors")
        if not facts.classes:
            raise ValueError("there are no classes")
    except ValueError as error:
        raise StateError(f"{file}: {error}.", "Scan the dataset again.") from error
    report = Report(facts, file, rows)
    _require_columns(report, schema)
    not_scored = rows.empty_cells("rank")
    for name in (*NEVER_NULL, *SCORED):
        empty = rows.empty_cells(name)
        if empty is not None and empty != (not_scored if name in SCORED else 0):
            raise StateError(f"{file}: a cell of {name!r} is empty.", "Scan the dataset again.")
    return report


def _require_columns(report: Report, schema: pa.Schema) -> None:
    """Refuse a report whose columns have other types than ours, or whose rows are not numbered."""
    for name, wanted in COLUMNS.items():
        if not schema.field(name).type.equals(wanted):
            problem = f"the column {name!r} is {schema.field(name).type}"
            raise StateError(f"{report.path}: {problem}.", "Scan the dataset again.")
    if not np.array_equal(report.numbers("row"), np.arange(len(report))):
        raise StateError(f"{report.path}: its rows are not in order.", "Scan the dataset again.")


def find_rows(report: Report, names: Sequence[str]) -> list[int]:
    """Return the rows with these ids, paths or row numbers."""
    places = report.texts("id").places(Texts(list(names))).tolist()
    return [place if place >= 0 else find_row(report, name) for place, name in zip(places, names, strict=True)]


def find_row(report: Report, name: str) -> int:
    """Return the row with this id, path or row number. The error for an unknown one names similar ids."""
    ids, paths = report.texts("id"), report.texts("path")
    for spelled in (name, os.path.normpath(name.replace("\\", "/"))):
        for column in (ids, paths):
            if (row := column.find(spelled)) >= 0:
                return row
    if name.isdecimal() and int(name) < len(ids):
        return int(name)
    whole = [i for i, path in enumerate(paths) if path and name.endswith(f"/{path}")] if os.path.isabs(name) else []
    if len(whole) == 1:
        return whole[0]
    ends = [known for known in ids if known.endswith(f"/{name}")]
    close = ends or difflib.get_close_matches(name, ids[:COMPARED_IDS], n=3)
    hint = f"Did you mean {' or '.join(map(repr, close[:3]))}?" if close else "Ids are in the report's column id."
    raise InputError(f"{name!r}: no such row in the run.", hint)
