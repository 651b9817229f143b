"""FiftyOne: a FiftyOneDataset with the given label as ground truth and the model's label as a prediction."""

from __future__ import annotations

import json
import os

from noisesieve.core.files import Document, Json
from noisesieve.exports.job import ExportJob, ExportResult

FACTS = ("verdict", "corruption_probability", "margin", "suggested_label")


def write(job: ExportJob) -> ExportResult:
    """Write metadata.json and samples.json, which refer to the image files where they are.

    Without a version in metadata.json FiftyOne reads the samples as plain documents and finds their fields itself.
    """
    assert job.files is not None
    samples = [_sample(row, str(file)) for row, file in zip(job.rows, job.files, strict=True)]
    metadata: Document = {"media_type": "image", "default_classes": job.classes, "info": {"noisesieve": job.version}}
    for name, document in (("metadata.json", metadata), ("samples.json", {"samples": samples})):
        (job.out / name).write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")
    command = f"fiftyone.Dataset.from_dir(dataset_dir={str(job.shown)!r}, dataset_type=fiftyone.types.FiftyOneDataset)"
    return ExportResult(len(samples), [command, "ground_truth is the given label, prediction the model's class."])


def _sample(row: Json, file: str) -> Document:
    return {
        "filepath": _text(os.path.abspath(file)),
        "tags": [row["verdict"], *([row["split"]] if row.get("split") else [])],
        "metadata": None,
        "ground_truth": {"_cls": "Classification", "label": row["label"]},
        "prediction": None
        if row["predicted_label"] is None
        else {
            "_cls": "Classification",
            "label": row["predicted_label"],
            "confidence": row["predicted_probability"],
        },
        **{name: row[name] for name in FACTS},
        "noisesieve_id": row["id"],
    }


def _text(name: str) -> str:
    """Return a name for JSON; bytes that are not UTF-8 are replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
