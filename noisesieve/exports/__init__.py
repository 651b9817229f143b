"""Room 6, HAND OVER: report → the annotator's format. A new format is one file here and one line in EXPORTS."""

from __future__ import annotations

from noisesieve.exports import cvat, fiftyone, huggingface, label_studio, tables, tree
from noisesieve.exports.parcel import Export, Parcel, pick

EXPORTS: dict[str, Export] = {
    "csv": Export(tables.write_csv, "{only}.csv"),
    "jsonl": Export(tables.write_jsonl, "{only}.jsonl"),
    "label-studio": Export(label_studio.write, "{only}-label-studio", folder=True, pictures="files"),
    "cvat": Export(cvat.write, "{only}-cvat.xml", pictures="sizes"),
    "fiftyone": Export(fiftyone.write, "{only}-fiftyone", folder=True, pictures="files"),
    "huggingface": Export(huggingface.write, "{only}-huggingface", folder=True, pictures="bytes"),
    "folder": Export(tree.write, "{only}-folder", folder=True, pictures="bytes"),
}

__all__ = ["EXPORTS", "Export", "Parcel", "pick"]
