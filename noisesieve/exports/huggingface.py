"""Hugging Face imagefolder: the images and a metadata.jsonl beside them."""

from __future__ import annotations

import json

from noisesieve.exports.images import ImageWriter
from noisesieve.exports.job import ExportJob, ExportResult

COLUMNS = ("label", "suggested_label", "verdict", "corruption_probability", "margin", "id", "path", "split", "sha256")


def write(job: ExportJob) -> ExportResult:
    """Write one line per image, `file_name` first, as JSON Lines: from a CSV the label 007 would be read as 7.

    The files are named by row number: from a folder or a file called `train`, `datasets` would make a split and ignore
    the rest of the metadata.
    """
    writer = ImageWriter(job)
    columns = [name for name in COLUMNS if name in job.table.column_names]
    names = writer.write_all(lambda row: (("images",), f"{row['row']:08d}"))
    with (job.out / "metadata.jsonl").open("w", encoding="utf-8", errors="backslashreplace") as file:
        for name, row in zip(names, job.rows, strict=True):
            if name is not None:
                entry = {"file_name": name, **{column: row[column] for column in columns}}
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
    command = f"datasets.load_dataset('imagefolder', data_dir={str(job.shown)!r})"
    return ExportResult(sum(name is not None for name in names), [command, *writer.notes()])
