"""A folder tree: given/suggested/file for suspects; for clean rows an image folder to train on."""

from __future__ import annotations

import os

from noisesieve.core.files import Json
from noisesieve.exports.images import ImageWriter
from noisesieve.exports.job import ExportJob, ExportResult

UNCLEAR = "no suggestion"


def write(job: ExportJob) -> ExportResult:
    """Write links or copies, below the split if the dataset has splits."""
    writer = ImageWriter(job)
    names = writer.write_all(_target)
    linked = job.link and job.files is not None and any(job.files)
    notes = ["The images are links: scan the folder with --allow-outside, or export with --files copy."] * linked
    return ExportResult(sum(name is not None for name in names), [*writer.notes(), *notes])


def _target(row: Json) -> tuple[tuple[str, ...], str]:
    """Return the folders and the stem of a row's file."""
    folders: tuple[str, ...] = (row["split"], row["label"]) if row.get("split") else (row["label"],)
    if row["verdict"] == "corrupted":
        folders += (row["suggested_label"] or UNCLEAR,)
    stem = os.path.splitext(str(row["path"]).rsplit("/", 1)[-1])[0] if row["path"] is not None else str(row["row"])
    return folders, stem
