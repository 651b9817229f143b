"""What every export format receives: the chosen rows, their images, and the output path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from noisesieve.core.errors import InputError
from noisesieve.core.files import Json
from noisesieve.core.records import Ints
from noisesieve.core.text import without_xml_control
from noisesieve.report.report import Report
from noisesieve.report.report_settings import MIN_PROBABILITY

BLOCK = 8192  # rows as Python objects at a time


class ImageChanged(Exception):
    """The image is not the one that was scanned any more."""


@dataclass(frozen=True)
class ExportResult:
    """How many rows were written, and notes for the user."""

    rows: int
    notes: list[str]


@dataclass(frozen=True)
class ChosenRows:
    """Rows of a report with all its columns, read a row group at a time."""

    count: int
    names: list[str]  # of the columns
    blocks: Callable[[], Iterator[pa.Table]]

    @classmethod
    def of_table(cls, table: pa.Table) -> ChosenRows:
        """Return rows that are in memory."""
        return cls(len(table), table.column_names, lambda: iter([table]))


@dataclass(frozen=True)
class ExportJob:
    """The rows to export. `out` is the file, or the empty folder, that the format fills; it is renamed to `shown`."""

    chosen: ChosenRows
    classes: list[str]
    out: Path
    shown: Path
    version: str
    root: Path | None = None  # the dataset's folder
    files: list[str | None] | None = None  # image file of each row; None if it is embedded
    sizes: list[tuple[int, int]] | None = None
    fetch: Callable[[int], bytes] | None = None  # returns the image of a row of this job; raises ImageChanged
    link: bool = True
    image_prefix: str | None = None  # of Label Studio's images; None: its own disk

    @cached_property
    def table(self) -> pa.Table:
        """All rows at once, as Arrow has them."""
        return pa.concat_tables(self.chosen.blocks())

    @cached_property
    def rows(self) -> list[Json]:
        """All rows at once, for formats that need every row in memory."""
        return list(self.stream())

    def stream(self) -> Iterator[Json]:
        """Yield the rows, with few of them in memory at a time."""
        for block in self.chosen.blocks():
            for batch in block.to_batches(BLOCK):
                yield from batch.to_pylist()


@dataclass(frozen=True)
class ExportFormat:
    """An export format; `images` is what it needs of the images."""

    write: Callable[[ExportJob], ExportResult]
    name: str  # default name of the output in the run folder
    folder: bool = False
    images: str = ""  # "", "files", "sizes" (files with their size) or "bytes"


def select_rows(report: Report, *, only: str, top: int | None, min_probability: float | None) -> Ints:
    """Return the chosen rows: suspects by rank; clean rows or all rows in the dataset's order, by rank with `top`."""
    if only == "corrupted":
        rows = report.suspect_rows(MIN_PROBABILITY if min_probability is None else min_probability)
    else:
        rows = np.arange(len(report)) if only == "all" else np.flatnonzero(report.verdicts == "clean")
    if min_probability is not None and only != "corrupted":
        rows = rows[report.numbers("corruption_probability").astype(np.float64)[rows] >= min_probability]  # no NaN
    if top is not None:
        rank = np.nan_to_num(report.numbers("rank").astype(np.float64)[rows], nan=np.inf)  # without a rank: last
        rows = rows[np.argsort(rank, kind="stable")[:top]]
    return rows


def chosen_rows(report: Report, rows: Ints) -> ChosenRows:
    """Return some rows of a report. All or most of them in order are never in memory together."""
    if (np.diff(rows) > 0).all():
        return ChosenRows(len(rows), report.column_names, lambda: report.take_blocks(rows))
    return ChosenRows.of_table(report.take(rows))


def best_label(row: Json) -> tuple[str, float | None]:
    """Return the suggested label, else the given one, and its probability."""
    if row["suggested_label"] is not None:
        return row["suggested_label"], row["predicted_probability"]
    return row["label"], row["label_probability"]


def require_xml_names(classes: list[str]) -> None:
    """Refuse classes that differ only in characters which XML does not allow: they would become one class."""
    allowed: dict[str, str] = {}
    for label in classes:
        other = allowed.setdefault(without_xml_control(label), label)
        if other != label:
            raise InputError(
                f"The classes {other!r} and {label!r} are the same in XML.", "Rename one, or export as csv or jsonl."
            )
