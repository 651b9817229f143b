"""CSV and JSONL: every column of the report, for spreadsheets, pandas and DuckDB."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO, Any

from noisesieve.exports.parcel import Parcel, Written
from noisesieve.files import replacing
from noisesieve.names import csv_line, guard_cell


def write_csv(parcel: Parcel) -> Written:
    """One row an example; text that a spreadsheet would run gets a quote before it."""
    with replacing(parcel.out) as file:
        fill_csv(file, parcel.table.column_names, parcel.stream())
    return Written(len(parcel.table), [])


def fill_csv(file: IO[bytes], names: list[str], rows: Iterable[dict[str, Any]]) -> None:
    """A table of ours for people and spreadsheets."""
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


def write_jsonl(parcel: Parcel) -> Written:
    """One JSON object a line, exactly as the report has it."""
    with replacing(parcel.out) as file:
        for row in parcel.stream():
            file.write((json.dumps(row, ensure_ascii=False, default=str) + "\n").encode("utf-8", "backslashreplace"))
    return Written(len(parcel.table), [])
