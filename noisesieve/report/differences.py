"""How a run in a folder differs from the one that is asked for, in words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from noisesieve.core.columns import Hashes, Texts
from noisesieve.core.files import Json
from noisesieve.core.parquet_file import read_parquet
from noisesieve.core.records import FileFacts, Index

SHOWN = 5  # differences that are named


def differences(folder: Path, known: Json, identity: Json, index: Index, file_facts: FileFacts) -> str:
    """Name the settings and the rows in which a run that is there differs from the one that is asked for."""
    before, now = dict(_flat(known)), dict(_flat(identity))
    settings = [
        f"{name.rpartition('.')[2]} {_shown(before.get(name))} (now {_shown(now.get(name))})"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and name != "fingerprint"
    ]
    reasons = ["other settings: " + ", ".join(settings[:SHOWN])] if settings else []
    if before.get("fingerprint") != now.get("fingerprint"):
        reasons.append("other data: " + _data_differences(folder, index, file_facts))
    return "; ".join(reasons)


def _data_differences(folder: Path, index: Index, file_facts: FileFacts) -> str:
    old = None
    for file in (folder / "report.parquet", folder / "checkpoint/rows.parquet"):
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):  # missing or damaged: then without details
            old = old or _known_rows(read_parquet(file, ["id", "label", "sha256"])[0])
    if old is None:
        return "the dataset changed"
    ids, labels, hashes = old
    now, now_labels = index.column("ids"), index.column("labels")
    place = now.codes(ids)  # of every row, in the old dataset
    changes = [f"{now[row]} is new" for row in np.flatnonzero(place < 0).tolist()]
    changes += [f"{ids[row]} is missing" for row in np.flatnonzero(ids.codes(now) < 0).tolist()]
    both = np.flatnonzero(place >= 0)
    then = place[both]
    relabelled = np.array(pc.not_equal(_plain(now_labels.take(both)), _plain(labels.take(then))))
    changed = relabelled | file_facts.hashes.take(both).differ(hashes.take(then))
    for j in np.flatnonzero(changed).tolist():
        row, before = int(both[j]), labels[int(then[j])]
        what = f"label {before!r} → {now_labels[row]!r}" if relabelled[j] else "content changed"
        changes.append(f"{now[row]}: {what}")
    more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
    return ", ".join(changes[:SHOWN]) + more if changes else "the order of the rows changed"


def _known_rows(table: pa.Table) -> tuple[Texts, Texts, Hashes] | None:
    """Return ids, labels and hashes of the rows of an earlier run; None for a table of another kind."""
    if set(table.column_names) != {"id", "label", "sha256"} or table["id"].null_count:
        return None
    return Texts(table["id"]), Texts(table["label"]), Hashes(table["sha256"])


def _plain(column: Texts) -> pa.Array:
    return column.array.cast(pa.large_string())


def _shown(value: object) -> str:
    """Return a setting as text."""
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _flat(document: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
