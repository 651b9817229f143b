"""Open a finished run again: its settings and its dataset, checked against the report."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from noisesieve import sources
from noisesieve.core.errors import InputError, OutputError, StateError
from noisesieve.core.files import write_json
from noisesieve.core.records import ImageLocation, Index, Recalibration
from noisesieve.core.settings import PixelSettings, ScanSettings, SourceSettings, TrainingOptions
from noisesieve.core.text import unescape_name
from noisesieve.report import Report, RunFolder, summarize, write_table
from noisesieve.report.run import FILES


def settings_of_run(report: Report, data: Path | None = None, root: Path | None = None) -> ScanSettings:
    """Return the settings of a run. `data` and `root` replace the paths of a dataset that was moved."""
    known = RunFolder(report.path.parent).read()
    if known is None or known.location is None:
        raise InputError(f"{report.path.parent}: no run.json with the run's settings.", "Scan again with --force.")
    identity, location = known.identity, known.location
    path = data or Path(location["path"])
    if not path.exists():
        problem = "no such file or folder" if data else "the dataset is not there any more"
        raise InputError(f"{path}: {problem}.", "Give its new path with --data.")
    root = root or (Path(location["root"]) if "root" in location else None)
    if root is not None and not root.exists():
        raise InputError(f"{root}: the images are not there any more.", "Give their new folder with --root.")
    options = TrainingOptions(**identity["wishes"])
    if "weights" in location:
        options = replace(options, weights=location["weights"])
    return ScanSettings(
        source=SourceSettings(path=path, root=root, allow_outside=True, **identity["source"]),
        embeddings=Path(location["embeddings"]) if "embeddings" in location else None,
        pixels=PixelSettings(max_pixels=identity["max_pixels"]),
        training=options,
        device=report.summary.training.device.partition(":")[0],
        probabilities=identity["probabilities"],
    )


def rewrite_run(
    report: Report, table: pa.Table, *, group_by: str | None = None, recalibration: Recalibration | None = None
) -> Report:
    """Replace report and summary of a finished run by those of a changed table. None: as they were before."""
    old, folder = report.summary, report.path.parent
    summary = summarize(
        table,
        classes=report.facts.classes,
        undecided=old.undecided,
        training=old.training,
        group_by=group_by or (None if old.groups is None else old.groups.column),
        recalibration=recalibration or old.recalibration,
    )
    RunFolder(folder).replace(
        {
            "report.parquet": lambda path: write_table(table, path, report.facts.to_document()),
            "summary.json": lambda path: write_json(path, summary.to_document()),
        }
    )
    return Report(table, report.facts, report.path, summary)


def pixel_settings_of_run(report: Report) -> PixelSettings:
    """Return the settings that the run read its images with."""
    known = RunFolder(report.path.parent).read()
    if known is None:
        return PixelSettings()
    cache = (known.location or {}).get("cache")
    return PixelSettings(max_pixels=known.identity["max_pixels"], cache_dir=None if cache is None else Path(cache))


def index_of_run(report: Report, data: Path | None = None, root: Path | None = None) -> Index:
    """Return the index that the run was made from. Refused if its rows are not those of the report."""
    return align_to_report(report, sources.read(settings_of_run(report, data, root).source))


def align_to_report(report: Report, index: Index) -> Index:
    """Return the index with exactly the rows of the report.

    Files of an image folder may have been added or removed since the run; a table must be unchanged.
    """
    ids = report.table["id"].to_pylist()
    if index.kind != "folder" or index.ids == ids:
        require_same_rows(report, index)
        return index
    paths, root = report.table["path"].to_pylist(), os.fspath(index.root)
    if not set(ids) & set(index.ids):
        raise StateError(f"{index.root}: has none of the {len(ids):,} images of the run.", "Is --data right?")
    return Index(
        name=index.name,
        kind=index.kind,
        root=index.root,
        ids=ids,
        paths=paths,
        labels=report.table["label"].to_pylist(),
        locate=lambda i: ImageLocation(os.path.join(root, unescape_name(paths[i]))),
        splits=report.table["split"].to_pylist() if "split" in report.table.column_names else None,
    )


def require_same_rows(report: Report, index: Index) -> None:
    """Refuse a dataset whose ids, paths or labels are not those of the run, and name the first difference."""
    columns = (report.table[name].to_pylist() for name in ("id", "path", "label"))
    now = zip(index.ids, index.paths, index.labels, strict=True)
    for before, after in zip(zip(*columns, strict=True), now, strict=False):
        if before != after:
            was, becomes = next((a, b) for a, b in zip(before, after, strict=True) if a != b)
            raise StateError(
                f"{index.root}: changed since the run: {before[0]!r} has {becomes!r} instead of {was!r}.",
                "Scan it again, or give the old dataset.",
            )
    if len(index) != len(report.table):
        raise StateError(
            f"{index.root}: changed since the run: {len(index):,} rows now, {len(report.table):,} then.",
            "Scan it again, or give the old dataset.",
        )


def refuse_output_in_dataset(report: Report, out: Path, data: Path | None, root: Path | None) -> None:
    """Refuse an output path inside the dataset, or one that is a file of the run itself."""
    if out.name in (*FILES, "run.json") and out.resolve().parent == report.path.parent.resolve():
        raise OutputError(f"{out}: is a file of the run itself.", "Choose another name with -o.")
    try:
        source = settings_of_run(report, data, root).source
    except InputError:
        return  # the dataset is not there
    if source.path.is_dir() and out.resolve().is_relative_to(source.path.resolve()):
        raise OutputError(f"{out}: is inside the dataset.", "Choose a path outside with -o.")
    if out.exists() and out.samefile(source.path):
        raise OutputError(f"{out}: is the dataset itself.", "Choose another name with -o.")
