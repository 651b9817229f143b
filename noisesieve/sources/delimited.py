"""CSV and TSV: every cell stays a string, and every row has its line number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from noisesieve.core.csv_file import csv_separator, read_csv_blocks
from noisesieve.core.records import Index, Ints
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.table import Table, to_index


def read_csv(settings: SourceSettings) -> Index:
    """Index a comma-separated table (or one with semicolons or tabs, as some spreadsheets write)."""
    return to_index(_read(settings.path, csv_separator(settings.path)), settings, "csv")


def read_tsv(settings: SourceSettings) -> Index:
    """Index a tab-separated table."""
    return to_index(_read(settings.path, "\t"), settings, "tsv")


def _read(file: Path, separator: str) -> Table:
    """Read a table block by block into Arrow: as Python objects a million rows take a gigabyte."""
    header, blocks = read_csv_blocks(file, separator)
    columns: list[list[pa.Array]] = [[] for _ in header]
    starts: list[Ints] = []
    for rows, lines in blocks:
        for column, cells in zip(columns, zip(*rows, strict=True) if rows else [()] * len(header), strict=True):
            column.append(pa.array(cells, pa.string()))
        starts.append(np.array(lines, dtype=np.int64))
    arrays = [pa.chunked_array(column, pa.string()) for column in columns]
    return Table(pa.table(arrays, names=header), np.concatenate(starts))
