"""The export formats by name."""

from __future__ import annotations

from noisesieve.exports import cvat, fiftyone, folder, huggingface, label_studio, tables
from noisesieve.exports.job import ExportFormat

EXPORTS: dict[str, ExportFormat] = {
    "csv": ExportFormat(tables.write_csv, "{only}.csv"),
    "jsonl": ExportFormat(tables.write_jsonl, "{only}.jsonl"),
    "label-studio": ExportFormat(label_studio.write, "{only}-label-studio", folder=True, images="files"),
    "cvat": ExportFormat(cvat.write, "{only}-cvat.xml", images="sizes"),
    "fiftyone": ExportFormat(fiftyone.write, "{only}-fiftyone", folder=True, images="files"),
    "huggingface": ExportFormat(huggingface.write, "{only}-huggingface", folder=True, images="bytes"),
    "folder": ExportFormat(folder.write, "{only}-folder", folder=True, images="bytes"),
}
