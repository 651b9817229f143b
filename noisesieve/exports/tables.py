"""CSV and JSONL: every column of the report, for spreadsheets, pandas and DuckDB."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from noisesieve.exports.parcel import Parcel
from noisesieve.files import replacing
from noisesieve.names import guard_cell


def write_csv(parcel: Parcel) -> list[str]:
    """One row an example; text that a spreadsheet would run gets a quote before it."""
    names = list(parcel.rows[0]) if parcel.rows else []
    with replacing(parcel.out) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([guard_cell(name) for name in names])
        writer.writerows([_cell(row[name]) for name in names] for row in parcel.rows)
        text.detach()
    return []


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return guard_cell(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value


def write_jsonl(parcel: Parcel) -> list[str]:
    """One JSON object a line, exactly as the report has it."""
    with replacing(parcel.out) as file:
        for row in parcel.rows:
            file.write((json.dumps(row, ensure_ascii=False, default=str) + "\n").encode("utf-8", "backslashreplace"))
    return []
