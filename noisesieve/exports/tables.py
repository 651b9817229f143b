"""CSV and JSONL: every column of the report, for spreadsheets, pandas and DuckDB."""

from __future__ import annotations

import json

from noisesieve.core.csv_file import write_csv_rows
from noisesieve.core.files import atomic_write
from noisesieve.exports.job import ExportJob, ExportResult


def write_csv(job: ExportJob) -> ExportResult:
    """Write one row per image; text that a spreadsheet would run as a formula gets a leading quote."""
    with atomic_write(job.out) as file:
        write_csv_rows(file, job.chosen.blocks(), names=job.chosen.names, guard=True)
    return ExportResult(job.chosen.count, [])


def write_jsonl(job: ExportJob) -> ExportResult:
    """Write one JSON object per line, with the values of the report."""
    with atomic_write(job.out) as file:
        for row in job.stream():
            file.write((json.dumps(row, ensure_ascii=False, default=str) + "\n").encode("utf-8", "backslashreplace"))
    return ExportResult(job.chosen.count, [])
