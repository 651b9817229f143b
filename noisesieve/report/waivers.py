"""Waivers: "reviewed, the label is right", in a text file that is committed with the dataset.

A waiver holds for one content under one label. If either changes, it no longer does, and that is said.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa

from noisesieve.errors import InputError
from noisesieve.files import replacing
from noisesieve.names import csv_line, guard_cell, unguard_cell
from noisesieve.records import Bools, Index
from noisesieve.settings import WAIVERS


@dataclass(frozen=True)
class Waiver:
    """One line of the file."""

    sha256: str
    label: str
    path: str
    reason: str
    date: str


COLUMNS = tuple(field.name for field in fields(Waiver))


def read_waivers(file: Path) -> list[Waiver]:
    """The waivers of a file. The usual one need not be there; one that was named must."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        if file == Path(WAIVERS):
            return []
        raise InputError(f"{file}: no such file.", "Check --waivers.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read ({error}).", "It is a UTF-8 CSV; write it anew.") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    found = []
    try:
        header = next(reader, [])
        if tuple(header[: len(COLUMNS)]) != COLUMNS:
            raise InputError(
                f"{file}: its first line is not {','.join(COLUMNS)}.", "Let `noisesieve waive` write it, or rename it."
            )
        for cells in reader:
            if not cells:
                continue
            if len(cells) < len(COLUMNS):
                raise InputError(
                    f"{file}:{reader.line_num}: {len(cells)} cells instead of {len(COLUMNS)}.", "Fill it up."
                )
            found.append(Waiver(*(unguard_cell(cell) for cell in cells[: len(COLUMNS)])))
    except csv.Error as error:
        raise InputError(f"{file}:{reader.line_num}: {error}.", "Check the quotes in that line.") from error
    return found


def add_waivers(file: Path, new: Sequence[Waiver]) -> int:
    """Write them into the file, a line each, in the order of their paths: how many were not there before."""
    known = {(waiver.sha256, waiver.label): waiver for waiver in (read_waivers(file) if file.exists() else [])}
    before = len(known)
    known |= {(waiver.sha256, waiver.label): waiver for waiver in new}
    lines = sorted(known.values(), key=lambda waiver: (waiver.path, waiver.label))
    with replacing(file) as out:
        for cells in (COLUMNS, *(map(guard_cell, astuple(waiver)) for waiver in lines)):
            out.write((csv_line(tuple(cells)) + "\n").encode("utf-8", "backslashreplace"))
    return len(known) - before


def waived_rows(
    waivers: Sequence[Waiver], *, names: Sequence[str], labels: Sequence[str], hashes: Sequence[str | None]
) -> tuple[Bools, list[str]]:
    """Which rows are waived, (N,), and the waivers that hold for none of them though they mean one, in words.

    `names` are the rows' paths, or ids where they have none.
    """
    rows = list(zip(hashes, labels, strict=True))
    holding = {(waiver.sha256, waiver.label) for waiver in waivers}
    mask = np.array([row in holding for row in rows], dtype=np.bool_)
    held = {row for row in rows if row in holding} if waivers else set()
    contents = {sha: (name, label) for (sha, label), name in zip(rows, names, strict=True)} if waivers else {}
    places = set(names) if waivers else set()
    broken = []
    for waiver in waivers:
        if (waiver.sha256, waiver.label) in held:
            continue
        if waiver.sha256 in contents:
            name, label = contents[waiver.sha256]
            broken.append(f"{name}: its label changed ({waiver.label!r}, now {label!r}): the waiver no longer holds")
        elif waiver.path in places:
            broken.append(f"{waiver.path}: its picture changed: the waiver no longer holds")
    return mask, broken


def names_of(index: Index) -> list[str]:
    """What waivers call the rows of a dataset."""
    return [path if path is not None else name for path, name in zip(index.paths, index.ids, strict=True)]


def with_waivers(table: pa.Table, mask: Bools) -> pa.Table:
    """The report's table with another column `waived`."""
    return table.set_column(table.column_names.index("waived"), "waived", pa.array(mask))
