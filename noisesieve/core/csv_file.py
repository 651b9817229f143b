"""Read a CSV or TSV: every cell stays a string, and every row has its line number. All commands read tables here."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from noisesieve.core.errors import InputError
from noisesieve.core.text import FORMULA, QUOTED, csv_line, guard_cell, line_that_is_not_utf8
from noisesieve.core.untrusted import open_regular

LONGEST_CELL = 2**24  # characters
READ_ROWS, WRITTEN_ROWS = 16_384, 8192  # rows that are Python objects, or text, at a time


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
    rows: list[list[str]] = []
    starts: list[int] = []
    header, blocks = read_csv_blocks(file, separator)
    for block, lines in blocks:
        rows += block
        starts += lines
    return CsvFile(header, rows, starts)


@contextlib.contextmanager
def long_cells() -> Iterator[None]:
    """Allow cells of up to LONGEST_CELL characters. The limit is one of the whole process, and is put back."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def read_csv_blocks(file: Path, separator: str) -> tuple[list[str], Iterator[tuple[list[list[str]], list[int]]]]:
    """Return the header, and blocks of rows with the line in which each row begins."""
    blocks = _read_csv_blocks(file, separator)
    ((header,), _) = next(blocks)
    return header, blocks


def _read_csv_blocks(file: Path, separator: str) -> Iterator[tuple[list[list[str]], list[int]]]:
    """Yield the header as a block of its own, then blocks of rows."""
    try:
        with io.TextIOWrapper(open_regular(file), encoding="utf-8-sig", newline="") as lines, long_cells():
            reader = csv.reader(lines, delimiter=separator, strict=True)
            header = next((cells for cells in reader if cells), [])
            yield [header], [0]
            width, begin, rows, starts = len(header), reader.line_num + 1, list[list[str]](), list[int]()
            for cells in reader:
                if cells:
                    if len(cells) != width:
                        raise InputError(
                            f"{file}:{begin}: {len(cells)} cells where the header has {width}.",
                            "Quote cells that contain the separator, or add the missing cells.",
                        )
                    rows.append(cells)
                    starts.append(begin)
                    if len(rows) == READ_ROWS:
                        yield rows, starts
                        rows, starts = [], []
                begin = reader.line_num + 1
            yield rows, starts
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file}:{line_that_is_not_utf8(file.read_bytes())}: not UTF-8 ({error.reason}).",
            "Save the table as UTF-8.",
        ) from error
    except csv.Error as error:
        raise InputError(f"{file}:{reader.line_num}: {error}.", "Check the quotes in that line.") from error
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.", "Check the path and its permissions.") from error


def write_csv_rows(
    file: IO[bytes], blocks: Iterable[pa.Table], *, names: Sequence[str], separator: str = ",", guard: bool = False
) -> None:
    """Write a header and the rows of tables to an open file, a column at a time: a row takes microseconds.

    With `guard` text that a spreadsheet would run as a formula gets a leading quote. Lists and objects are JSON.
    """
    header = [guard_cell(name) if guard else name for name in names]
    file.write((csv_line(header, separator) + "\n").encode("utf-8", "backslashreplace"))
    for block in blocks:
        for start in range(0, len(block), WRITTEN_ROWS):
            part = block.slice(start, WRITTEN_ROWS)
            cells = [_cells(part[name].combine_chunks(), guard=guard) for name in names]
            # A row of one empty cell would be an empty line, which readers skip.
            lines = _quoted_empty(cells[0]) if len(cells) == 1 else pc.binary_join_element_wise(*cells, separator)
            file.write(("\n".join(lines.to_numpy(zero_copy_only=False).tolist()) + "\n").encode())


def _cells(column: pa.Array, *, guard: bool) -> pa.Array:
    """Return a column as the text of CSV cells, quoted where needed; an empty text for null."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        return _cells(column.dictionary, guard=guard).take(column.indices).fill_null("")
    texts = _texts_of(column).fill_null("")
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if guard and is_text and pc.any(marked := pc.match_substring_regex(texts, FORMULA)).as_py():
        texts = pc.if_else(marked, pc.binary_join_element_wise("'", texts, ""), texts)
    if pc.any(marked := pc.match_substring_regex(texts, QUOTED)).as_py():
        doubled = pc.replace_substring(texts, '"', '""')
        texts = pc.if_else(marked, pc.binary_join_element_wise('"', doubled, '"', ""), texts)
    return texts


def _texts_of(column: pa.Array) -> pa.Array:
    """Return a column as text: numbers as the shortest that read back the same, lists and objects as JSON."""
    kind = column.type
    if pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
        joined = pc.binary_join(column.cast(pa.list_(pa.string())), ", ")
        return pc.binary_join_element_wise("[", joined, "]", "")
    if pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
        coded = column.values.dictionary_encode()
        names = pa.array([json.dumps(name, ensure_ascii=False) for name in coded.dictionary.to_pylist()], pa.string())
        lists = pa.ListArray.from_arrays(column.offsets, names.take(coded.indices))
        joined = pc.if_else(column.is_valid(), pc.binary_join(lists, ", "), None)
        return pc.binary_join_element_wise("[", joined, "]", "")
    if not pa.types.is_nested(kind):
        with contextlib.suppress(pa.ArrowException, UnicodeDecodeError):
            return column.cast(pa.string())
    return pa.array([_text_of(value) for value in column.to_pylist()], pa.string())


def _text_of(value: object) -> str | None:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return None if value is None else str(value)


def _quoted_empty(cells: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(cells, ""), '""', cells)
