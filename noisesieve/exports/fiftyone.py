"""FiftyOne: a FiftyOneImageClassificationDataset, the pictures staying where they are."""

from __future__ import annotations

import json
import os
from typing import Any

from noisesieve.exports.parcel import Parcel, Written, best_label
from noisesieve.names import unescape_name


def write(parcel: Parcel) -> Written:
    """labels.json with the suggestion of each picture, and data.json that says where the pictures are."""
    assert parcel.files is not None
    notes = [
        "fiftyone.Dataset.from_dir(dataset_type=fiftyone.types.FiftyOneImageClassificationDataset, "
        f"dataset_dir={str(parcel.shown)!r}, data_path='data.json')"
    ]
    keys = [os.path.splitext(unescape_name(row["path"]))[0] for row in parcel.rows]
    if len(set(keys)) < len(keys):  # a.jpg beside a.png
        keys = [os.path.abspath(str(file)) for file in parcel.files]
        notes.append("Some pictures differ in nothing but their extension: the keys are whole paths.")
    taken: set[str] = set()
    for i, row in enumerate(parcel.rows):  # a picture that is listed twice
        keys[i] = f"{keys[i]}#row{row['row']}" if keys[i] in taken else keys[i]
        taken.add(keys[i])
    number = {label: i for i, label in enumerate(parcel.classes)}
    labels: dict[str, Any] = {}
    for key, row in zip(keys, parcel.rows, strict=True):
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
    places = {_text(key): _text(os.path.abspath(str(file))) for key, file in zip(keys, parcel.files, strict=True)}
    for name, document in (("labels.json", {"classes": parcel.classes, "labels": labels}), ("data.json", places)):
        (parcel.out / name).write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")
    return Written(len(labels), notes)


def _text(name: str) -> str:
    """A name that JSON can carry; bytes that are no UTF-8 are replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
