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
from noisesieve.records import Bools


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
    """The waivers of a file; none where there is no such file."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return []
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
    known = {(waiver.sha256, waiver.label): waiver for waiver in read_waivers(file)}
    before = len(known)
    known |= {(waiver.sha256, waiver.label): waiver for waiver in new}
    lines = sorted(known.values(), key=lambda waiver: (waiver.path, waiver.label))
    with replacing(file) as out:
        for cells in (COLUMNS, *(map(guard_cell, astuple(waiver)) for waiver in lines)):
            out.write((csv_line(tuple(cells)) + "\n").encode())
    return len(known) - before


def waived_rows(
    waivers: Sequence[Waiver], *, paths: Sequence[str | None], labels: Sequence[str], hashes: Sequence[str | None]
) -> tuple[Bools, list[str]]:
    """Which rows are waived, (N,), and the waivers that no longer hold, in words."""
    holding = {(waiver.sha256, waiver.label) for waiver in waivers}
    mask = np.array([(sha, label) in holding for sha, label in zip(hashes, labels, strict=True)], dtype=np.bool_)
    if not waivers:
        return mask, []
    by_path = {waiver.path: waiver for waiver in waivers}
    by_content = {waiver.sha256: waiver for waiver in waivers}
    broken = []
    for path, label, sha, waived in zip(paths, labels, hashes, mask.tolist(), strict=True):
        if waived:
            continue
        if (waiver := by_content.get(sha or "")) is not None:
            what = f"its label changed ({waiver.label!r}, now {label!r})"
        elif path is not None and path in by_path:
            what = "its picture changed"
        else:
            continue
        broken.append(f"{path or sha}: {what}: the waiver no longer holds")
    return mask, broken


def with_waivers(table: pa.Table, mask: Bools) -> pa.Table:
    """The report's table with another column `waived`."""
    return table.set_column(table.column_names.index("waived"), "waived", pa.array(mask))
