"""Read a CSV or TSV: every cell stays a string, and every row has its line number. All commands read tables here."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from noisesieve.core.errors import InputError
from noisesieve.core.text import line_that_is_not_utf8
from noisesieve.core.untrusted import open_regular

LONGEST_CELL = 2**24  # characters


@dataclass(frozen=True)
class CsvFile:
    """The cells of a file, without empty lines."""

    header: list[str]
    rows: list[list[str]]  # each as long as the header
    lines: list[int]  # line of the file in which each row begins

    def column(self, name: str) -> list[str]:
        """Return the cells of a column."""
        position = self.header.index(name)
        return [cells[position] for cells in self.rows]

    def refuse_repeated_columns(self, file: Path) -> None:
        """Refuse a header with the same name twice: one of the columns would be ignored."""
        seen: set[str] = set()
        for name in self.header:
            if name in seen:
                raise InputError(f"{file}: has the column {name!r} twice.", "Rename one of them.")
            seen.add(name)


def csv_separator(file: Path) -> str:
    """Return the separator of a .csv or .tsv, from its name and its header."""
    if file.suffix.lower() == ".tsv":
        return "\t"
    try:
        with open_regular(file) as lines:
            header = lines.readline(LONGEST_CELL).decode("utf-8-sig", "replace")
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.", "Check the path and its permissions.") from error
    return next((mark for mark in (",", ";", "\t") if mark in header), ",")


def read_csv_file(file: Path, separator: str) -> CsvFile:
    """Read a file in UTF-8, with or without a byte order mark. Errors name the line."""
    with long_cells():
        return _read_csv_file(file, separator)


@contextlib.contextmanager
def long_cells() -> Iterator[None]:
    """Allow cells of up to LONGEST_CELL characters. The limit is one of the whole process, and is put back."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _read_csv_file(file: Path, separator: str) -> CsvFile:
    rows: list[list[str]] = []
    starts: list[int] = []
    try:
        with io.TextIOWrapper(open_regular(file), encoding="utf-8-sig", newline="") as lines:
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
        raise InputError(
            f"{file}:{line_that_is_not_utf8(file.read_bytes())}: not UTF-8 ({error.reason}).",
            "Save the table as UTF-8.",
        ) from error
    except csv.Error as error:
        raise InputError(f"{file}:{reader.line_num}: {error}.", "Check the quotes in that line.") from error
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.", "Check the path and its permissions.") from error
    return CsvFile(header, rows, starts)
