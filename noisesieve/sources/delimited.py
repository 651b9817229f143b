"""CSV and TSV: every cell stays a string, and every row has its line number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from noisesieve.core.csv_file import csv_rows, csv_separator
from noisesieve.core.records import Index, Ints
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.table import Table, to_index

BLOCK = 16_384  # rows as Python objects at a time


def read_csv(settings: SourceSettings) -> Index:
    """Index a comma-separated table (or one with semicolons or tabs, as some spreadsheets write)."""
    return to_index(_read(settings.path, csv_separator(settings.path)), settings, "csv")


def read_tsv(settings: SourceSettings) -> Index:
    """Index a tab-separated table."""
    return to_index(_read(settings.path, "\t"), settings, "tsv")


def _read(file: Path, separator: str) -> Table:
    header: list[str] = []
    tables: list[pa.Table] = []
    starts: list[Ints] = []
    rows: list[list[str]] = []
    lines: list[int] = []

    def store() -> None:
        """Move the rows to Arrow: as Python objects a million of them take a gigabyte."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(header)
        tables.append(pa.table([pa.array(cells, pa.string()) for cells in columns], names=header))
        starts.append(np.array(lines, dtype=np.int64))
        rows.clear()
        lines.clear()

    for line, cells in csv_rows(file, separator):
        if line == 0:
            header = cells
            continue
        rows.append(cells)
        lines.append(line)
        if len(rows) == BLOCK:
            store()
    store()
    return Table(pa.concat_tables(tables), np.concatenate(starts))
