"""What every format is given: the chosen rows, where their pictures lie, and where the result goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from noisesieve.errors import InputError
from noisesieve.names import without_xml_control
from noisesieve.report import Report

BLOCK = 8192  # rows as Python objects at a time


class Lost(Exception):
    """This picture is no longer the one that was scanned."""


@dataclass(frozen=True)
class Written:
    """How many rows arrived, and what people should know."""

    rows: int
    notes: list[str]


@dataclass(frozen=True)
class Parcel:
    """Rows to hand over. `out` is the file, or the empty folder, that the format fills; it will be `shown`."""

    table: pa.Table  # the report's columns
    classes: list[str]
    out: Path
    shown: Path
    version: str
    root: Path | None = None  # the dataset's folder
    files: list[str | None] | None = None  # each row's picture on disk; None where it is embedded
    sizes: list[tuple[int, int]] | None = None
    fetch: Callable[[int], bytes] | None = None  # the picture of a row of this parcel; raises Lost
    link: bool = True
    image_prefix: str = "/data/local-files/?d="

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """All rows at once: for formats that are one document, and for those that handle every picture anyway."""
        return list(self.stream())

    def stream(self) -> Iterator[dict[str, Any]]:
        """One row after the other, few in memory."""
        for batch in self.table.to_batches(BLOCK):
            yield from batch.to_pylist()


@dataclass(frozen=True)
class Export:
    """A format; `pictures` says what it needs of them."""

    write: Callable[[Parcel], Written]
    name: str  # of the result in the run folder
    folder: bool = False
    pictures: str = ""  # "", "files", "sizes" (files with their size) or "bytes"


def pick(report: Report, *, only: str, top: int | None, least: float | None) -> pa.Table:
    """The chosen rows: suspects worst first; clean and all in the dataset's order, unless only the top is wanted."""
    table = report.corrupted if only == "corrupted" else report.table
    if only == "clean":
        table = table.filter(pa.array(report.verdicts == "clean"))
    if least is not None:
        chance = table["corruption_probability"].to_numpy(zero_copy_only=False).astype(np.float64)
        table = table.filter(pa.array(chance >= least))  # never true for a row without a score
    if top is not None:
        table = table.sort_by("rank").slice(0, top)  # rows without a rank come last
    return table


def best_label(row: dict[str, Any]) -> tuple[str, float | None]:
    """What the row should be called as far as the scan knows, and that class's probability."""
    if row["suggested_label"] is not None:
        return row["suggested_label"], row["predicted_probability"]
    return row["label"], row["label_probability"]


def require_xml_names(classes: list[str]) -> None:
    """Refuse classes that differ only in characters which XML cannot carry: they would come back as one."""
    carried: dict[str, str] = {}
    for label in classes:
        other = carried.setdefault(without_xml_control(label), label)
        if other != label:
            raise InputError(
                f"The classes {other!r} and {label!r} are the same in XML.", "Rename one, or export as csv or jsonl."
            )
