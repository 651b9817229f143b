"""What every format is given: the chosen rows, where their pictures lie, and where the result goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from noisesieve.report import Report


@dataclass(frozen=True)
class Parcel:
    """Rows to hand over. `out` is the file, or the empty folder, that the format fills."""

    rows: list[dict[str, Any]]  # the report's columns
    classes: list[str]
    out: Path
    only: str
    version: str
    root: Path | None = None  # the dataset's folder
    files: list[str | None] | None = None  # each row's picture on disk; None where it is embedded
    sizes: list[tuple[int, int]] | None = None
    fetch: Callable[[int], bytes] | None = None  # the picture of a row of this parcel; OSError if it is lost
    link: bool = True
    image_prefix: str = "/data/local-files/?d="


@dataclass(frozen=True)
class Export:
    """A format: its writer returns what people should know; `pictures` says what it needs of them."""

    write: Callable[[Parcel], list[str]]
    name: str  # of the result in the run folder
    folder: bool = False
    pictures: str = ""  # "", "files", "sizes" (files with their size) or "bytes"


def pick(report: Report, *, only: str, top: int | None, least: float | None) -> pa.Table:
    """The chosen rows: suspects worst first; clean and all in the dataset's order, unless only the top is wanted."""
    table, verdicts = report.table, report.verdicts
    if only != "all":
        table = table.filter(pa.array(verdicts == only))
    if least is not None:
        chance = table["corruption_probability"].to_numpy(zero_copy_only=False).astype(np.float64)
        table = table.filter(pa.array(chance >= least))  # never true for a row without a score
    if only == "corrupted" or top is not None:
        table = table.sort_by("rank")  # rows without one come last
    return table if top is None else table.slice(0, top)


def best_label(row: dict[str, Any]) -> tuple[str, float | None]:
    """What the row should be called as far as the scan knows, and that class's probability."""
    if row["suggested_label"] is not None:
        return row["suggested_label"], row["predicted_probability"]
    return row["label"], row["label_probability"]
