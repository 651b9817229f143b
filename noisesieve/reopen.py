"""A finished run's dataset again: where it lay, or where the user says it lies now, checked against the report."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from noisesieve import sources
from noisesieve.errors import InputError, StateError
from noisesieve.names import unescape_name
from noisesieve.records import Index, Place
from noisesieve.report import Report, RunFolder
from noisesieve.settings import PixelSettings, ScanSettings, SourceSettings, Wishes


def settings_of(report: Report, data: Path | None = None, root: Path | None = None) -> ScanSettings:
    """The settings that a run was made with, its dataset where it lay or where the user says it lies now."""
    document = RunFolder(report.path.parent).read()
    if document is None or "location" not in document:
        raise InputError(f"{report.path.parent}: no run.json that says how it was made.", "Scan again with --force.")
    identity, location = document["identity"], document["location"]
    path = data or Path(location["path"])
    if not path.exists():
        problem = "no such file or folder" if data else "the dataset is no longer there"
        raise InputError(f"{path}: {problem}.", "Say where the dataset lies with --data.")
    root = root or (Path(location["root"]) if "root" in location else None)
    if root is not None and not root.exists():
        raise InputError(f"{root}: the images are no longer there.", "Say where they lie with --root.")
    wishes = Wishes(**identity["wishes"])
    if "weights" in location:
        wishes = replace(wishes, weights=location["weights"])
    return ScanSettings(
        source=SourceSettings(path=path, root=root, allow_outside=True, **identity["source"]),
        pixels=PixelSettings(max_pixels=identity["max_pixels"]),
        wishes=wishes,
        device=report.summary["training"]["device"].partition(":")[0],
        probabilities=identity["probabilities"],
    )


def pixels_of(report: Report) -> PixelSettings:
    """How the run read its pictures."""
    document = RunFolder(report.path.parent).read()
    return PixelSettings() if document is None else PixelSettings(max_pixels=document["identity"]["max_pixels"])


def index_of(report: Report, data: Path | None = None, root: Path | None = None) -> Index:
    """The index that the run was made from; refused where its rows are no longer the report's."""
    return aligned(report, sources.read(settings_of(report, data, root).source))


def aligned(report: Report, index: Index) -> Index:
    """The index in the rows of the run. Of a folder files may have gone or come since; of a table nothing may."""
    ids = report.table["id"].to_pylist()
    if index.kind != "folder" or index.ids == ids:
        same_rows(report, index)
        return index
    paths, root = report.table["path"].to_pylist(), os.fspath(index.root)
    if not set(ids) & set(index.ids):
        raise StateError(f"{index.root}: holds none of the {len(ids):,} images of the run.", "Is --data right?")
    return Index(
        name=index.name,
        kind=index.kind,
        root=index.root,
        ids=ids,
        paths=paths,
        labels=report.table["label"].to_pylist(),
        places=lambda i: Place(os.path.join(root, unescape_name(paths[i]))),
        splits=report.table["split"].to_pylist() if "split" in report.table.column_names else None,
    )


def same_rows(report: Report, index: Index) -> None:
    """Refuse a dataset whose ids, paths or labels are not those of the run, naming the first that differs."""
    columns = (report.table[name].to_pylist() for name in ("id", "path", "label"))
    now = zip(index.ids, index.paths, index.labels, strict=True)
    for before, after in zip(zip(*columns, strict=True), now, strict=False):
        if before != after:
            was, becomes = next((a, b) for a, b in zip(before, after, strict=True) if a != b)
            raise StateError(
                f"{index.root}: changed since the run: {before[0]!r} has {becomes!r} where {was!r} was.",
                "Scan it again, or give the old one.",
            )
    if len(index) != len(report.table):
        raise StateError(
            f"{index.root}: changed since the run: {len(index):,} rows now, {len(report.table):,} then.",
            "Scan it again, or give the old one.",
        )
