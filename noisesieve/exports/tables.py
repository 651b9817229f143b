"""CSV and JSONL: every column of the report, for spreadsheets, pandas and DuckDB."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO, Any

from noisesieve.core.files import Json, atomic_write
from noisesieve.core.text import csv_line, guard_cell
from noisesieve.exports.job import ExportJob, ExportResult


def write_csv(job: ExportJob) -> ExportResult:
    """Write one row per image; text that a spreadsheet would run as a formula gets a leading quote."""
    with atomic_write(job.out) as file:
        fill_csv(file, job.table.column_names, job.stream())
    return ExportResult(len(job.table), [])


def fill_csv(file: IO[bytes], names: list[str], rows: Iterable[Json]) -> None:
    """Write rows as CSV to an open file, with formulas guarded."""
    file.write((csv_line([guard_cell(name) for name in names]) + "\n").encode())
    for row in rows:
        file.write((csv_line([_cell(row[name]) for name in names]) + "\n").encode("utf-8", "backslashreplace"))


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return guard_cell(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value


def write_jsonl(job: ExportJob) -> ExportResult:
    """Write one JSON object per line, with the values of the report."""
    with atomic_write(job.out) as file:
        for row in job.stream():
            file.write((json.dumps(row, ensure_ascii=False, default=str) + "\n").encode("utf-8", "backslashreplace"))
    return ExportResult(len(job.table), [])
