"""Room 5, RECORD: Verdicts → report.parquet and the files beside it."""

from __future__ import annotations

from noisesieve.report.build_table import ReportInputs, build_table, class_codes, probabilities_table
from noisesieve.report.choose_folder import output_folder
from noisesieve.report.compare import compare
from noisesieve.report.report import (
    Report,
    ReportFacts,
    find_row,
    find_rows,
    read_columns,
    read_report,
    write_division,
    write_history,
    write_margin_history,
    write_table,
)
from noisesieve.report.run import RunFolder, RunRecord, fingerprint
from noisesieve.report.schema import COLUMNS
from noisesieve.report.summarize import summarize

__all__ = [
    "COLUMNS",
    "Report",
    "ReportFacts",
    "ReportInputs",
    "RunFolder",
    "RunRecord",
    "build_table",
    "class_codes",
    "compare",
    "find_row",
    "find_rows",
    "fingerprint",
    "output_folder",
    "probabilities_table",
    "read_columns",
    "read_report",
    "summarize",
    "write_division",
    "write_history",
    "write_margin_history",
    "write_table",
]
