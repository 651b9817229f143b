"""FiftyOne: a FiftyOneImageClassificationDataset that refers to the image files."""

from __future__ import annotations

import json
import os
from typing import Any

from noisesieve.core.text import unescape_name
from noisesieve.exports.job import ExportJob, ExportResult, best_label


def write(job: ExportJob) -> ExportResult:
    """Write labels.json with the suggestion for each image, and data.json with the paths of the images."""
    assert job.files is not None
    notes = [
        "fiftyone.Dataset.from_dir(dataset_type=fiftyone.types.FiftyOneImageClassificationDataset, "
        f"dataset_dir={str(job.shown)!r}, data_path='data.json')"
    ]
    keys = [os.path.splitext(unescape_name(row["path"]))[0] for row in job.rows]
    if len(set(keys)) < len(keys):  # a.jpg beside a.png
        keys = [os.path.abspath(str(file)) for file in job.files]
        notes.append("Some image files differ only in their extension: the keys are absolute paths.")
    taken: set[str] = set()
    for i, row in enumerate(job.rows):  # an image that is listed twice
        keys[i] = f"{keys[i]}#row{row['row']}" if keys[i] in taken else keys[i]
        taken.add(keys[i])
    number = {label: i for i, label in enumerate(job.classes)}
    labels: dict[str, Any] = {}
    for key, row in zip(keys, job.rows, strict=True):
        label, confidence = best_label(row)
        labels[_text(key)] = {
            "label": number.get(label),
            "confidence": confidence,
            "attributes": {
                "given_label": row["label"],
                "verdict": row["verdict"],
                "corruption_probability": row["corruption_probability"],
                "margin": row["margin"],
            },
        }
    paths = {_text(key): _text(os.path.abspath(str(file))) for key, file in zip(keys, job.files, strict=True)}
    for name, document in (("labels.json", {"classes": job.classes, "labels": labels}), ("data.json", paths)):
        (job.out / name).write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")
    return ExportResult(len(labels), notes)


def _text(name: str) -> str:
    """Return a name for JSON; bytes that are not UTF-8 are replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
