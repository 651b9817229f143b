"""CSV and TSV: every cell stays a string, and every row has its line number."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from noisesieve.core.errors import InputError
from noisesieve.core.files import csv_separator
from noisesieve.core.records import Index
from noisesieve.core.settings import SourceSettings
from noisesieve.sources.table import Table, to_index


def read_csv(settings: SourceSettings) -> Index:
    """Index a comma-separated table (or one with semicolons, as some spreadsheets write)."""
    return to_index(_read(settings.path, csv_separator(settings.path)), settings, "csv")


def read_tsv(settings: SourceSettings) -> Index:
    """Index a tab-separated table."""
    return to_index(_read(settings.path, "\t"), settings, "tsv")


def _read(file: Path, separator: str) -> Table:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    rows: list[list[str]] = []
    starts: list[int] = []
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, delimiter=separator, strict=True)
            header = next((cells for cells in reader if cells), [])
            begin = reader.line_num + 1
            for cells in reader:
                if cells and len(cells) != len(header):
                    raise InputError(
                        f"{file}:{begin}: {len(cells)} cells where the header has {len(header)}.",
                        "Quote cells that contain the separator, or add the missing cells.",
                    )
                if cells:
                    rows.append(cells)
                    starts.append(begin)
                begin = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise InputError(f"{file}:{_line_of(file)}: not UTF-8 ({error.reason}).", "Save the table as UTF-8.") from error
    except csv.Error as error:
        raise InputError(f"{file}:{reader.line_num}: {error}.", "Check the quotes in that line.") from error
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.", "Check its permissions.") from error
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(header)
    arrays = [pa.array(cells, pa.string()) for cells in columns]
    return Table(pa.table(arrays, names=header), np.array(starts, dtype=np.int64))


def _line_of(file: Path) -> int:
    """Return the number of the first line that is not UTF-8."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1
