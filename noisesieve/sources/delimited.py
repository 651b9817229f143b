"""CSV and TSV: every cell stays a string, and every row has its line number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from noisesieve.core.csv_file import csv_separator, read_csv_file
from noisesieve.core.records import Index
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.table import Table, to_index


def read_csv(settings: SourceSettings) -> Index:
    """Index a comma-separated table (or one with semicolons or tabs, as some spreadsheets write)."""
    return to_index(_read(settings.path, csv_separator(settings.path)), settings, "csv")


def read_tsv(settings: SourceSettings) -> Index:
    """Index a tab-separated table."""
    return to_index(_read(settings.path, "\t"), settings, "tsv")


def _read(file: Path, separator: str) -> Table:
    table = read_csv_file(file, separator)
    columns = list(zip(*table.rows, strict=True)) if table.rows else [()] * len(table.header)
    arrays = [pa.array(cells, pa.string()) for cells in columns]
    return Table(pa.table(arrays, names=table.header), np.array(table.lines, dtype=np.int64))
