"""How a run in a folder differs from the one that is asked for, in words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

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
            old = old or read_parquet(file, ["id", "label", "sha256"])[0].to_pydict()
    if old is None or set(old) != {"id", "label", "sha256"} or not all(isinstance(name, str) for name in old["id"]):
        return "the dataset changed"
    before = dict(zip(old["id"], zip(old["label"], old["sha256"], strict=True), strict=True))
    now = dict(zip(index.ids, zip(index.labels, file_facts.sha256, strict=True), strict=True))
    changes = [f"{name} is new" for name in now if name not in before]
    changes += [f"{name} is missing" for name in before if name not in now]
    for name, (label, sha256) in now.items():
        if name in before and before[name] != (label, sha256):
            what = f"label {before[name][0]!r} → {label!r}" if before[name][0] != label else "content changed"
            changes.append(f"{name}: {what}")
    more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
    return ", ".join(changes[:SHOWN]) + more if changes else "the order of the rows changed"


def _shown(value: object) -> str:
    """Return a setting as text."""
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _flat(document: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
