"""Waivers: "reviewed, the label is right", in a text file that is committed with the dataset.

A waiver is valid for one image content with one label. If either changes, it ends, with a warning.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from noisesieve.core.columns import HASH, Hashes, Texts
from noisesieve.core.csv_file import read_csv_file
from noisesieve.core.errors import InputError, OutputError
from noisesieve.core.files import Json, atomic_write, cannot_be_written, digest
from noisesieve.core.records import Bools, Index
from noisesieve.core.text import csv_line, guard_cell, unguard_cell
from noisesieve.report.report_settings import WAIVERS

WAIT_SECONDS = 60.0  # for another process that writes the same file


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
    """Read a file of waivers. The default file may be missing, one that the user named may not."""
    if not file.exists():
        if file == WAIVERS:
            return []
        raise InputError(f"{file}: no such file.", "Check --waivers.")
    table = read_csv_file(file, ",")
    if tuple(table.header[: len(COLUMNS)]) != COLUMNS:
        raise InputError(
            f"{file}: its first line is not {','.join(COLUMNS)}.", "Let `noisesieve waive` write it, or rename it."
        )
    return [Waiver(*(unguard_cell(cell) for cell in cells[: len(COLUMNS)])) for cells in table.rows]


def waiver_of(row: Json, reason: str) -> Waiver:
    """Return the waiver of a row of a report."""
    name = row["path"] or row["id"]
    return Waiver(row["sha256"] or "", row["label"], name, reason, datetime.date.today().isoformat())


def add_waivers(file: Path, new: Sequence[Waiver]) -> int:
    """Add waivers to the file, one line each, sorted by path. Returns how many are new.

    Several processes may do this at once: each waits for the others.
    """
    locks = user_cache_path("noisesieve") / "locks"  # the user's own; not beside a file that is committed
    try:
        locks.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(locks / f"waivers-{digest(str(file.resolve()))[:16]}.lock", timeout=WAIT_SECONDS):
            return _add_waivers(file, new)
    except Timeout as error:
        raise OutputError(f"{file}: another process is writing it.", "Wait for it, and run this again.") from error
    except OSError as error:
        raise cannot_be_written(locks, error) from error


def _add_waivers(file: Path, new: Sequence[Waiver]) -> int:
    known = {_key(waiver): waiver for waiver in (read_waivers(file) if file.exists() else [])}
    before = len(known)
    known |= {_key(waiver): waiver for waiver in new}
    lines = sorted(known.values(), key=lambda waiver: (waiver.path, waiver.label))
    with atomic_write(file) as out:
        for cells in (COLUMNS, *(map(guard_cell, astuple(waiver)) for waiver in lines)):
            out.write((csv_line(tuple(cells)) + "\n").encode("utf-8", "backslashreplace"))
    return len(known) - before


def _key(waiver: Waiver) -> tuple[str, str]:
    """Return what a waiver holds for: a content, or a row's name where it has none, with a label."""
    return waiver.sha256 or f"row {waiver.path}", waiver.label


def waived_rows(waivers: Sequence[Waiver], *, names: Texts, labels: Texts, hashes: Hashes) -> tuple[Bools, list[str]]:
    """Return which rows are waived, (N,), and messages about waivers that are no longer valid.

    `names` are the paths of the rows, or their ids where they have no path. Rows of predictions have no content: their
    waivers hold for a name with a label.
    """
    mask = np.zeros(len(names), dtype=np.bool_)
    if not waivers:
        return mask, []
    known = Hashes([waiver.sha256 for waiver in waivers if HASH.fullmatch(waiver.sha256)])
    named = names.is_in({waiver.path for waiver in waivers})
    rows_of: dict[str, list[int]] = {}  # content or name → its rows, of those that a waiver could mean
    contents: dict[str, int] = {}
    for row in np.flatnonzero(hashes.is_in(known) | named).tolist():
        sha = hashes[row]
        rows_of.setdefault(sha or f"row {names[row]}", []).append(row)
        rows_of.setdefault(f"name {names[row]}", []).append(row)
        if sha is not None:
            contents[sha] = row
    broken = []
    for waiver in waivers:
        key, label = _key(waiver)
        held = [row for row in rows_of.get(key, []) if labels[row] == label]
        mask[held] = True
        if held:
            continue
        if waiver.sha256 in contents:
            row = contents[waiver.sha256]
            change = f"its label changed ({waiver.label!r}, now {labels[row]!r})"
            broken.append(f"{names[row]}: {change}: the waiver is void")
        elif f"name {waiver.path}" in rows_of:
            broken.append(f"{waiver.path}: its image changed: the waiver is void")
    return mask, broken


def find_waived(file: Path, index: Index, hashes: Hashes) -> tuple[Bools, list[str]]:
    """Return which rows of a dataset a file of waivers waives, and messages about waivers that are void."""
    paths, ids = index.column("paths"), index.column("ids")
    names = ids if paths.array.null_count == len(paths) else paths
    if 0 < paths.array.null_count < len(paths):
        names = Texts(pc.if_else(paths.array.is_null(), ids.array, paths.array))
    return waived_rows(read_waivers(file), names=names, labels=index.column("labels"), hashes=hashes)
