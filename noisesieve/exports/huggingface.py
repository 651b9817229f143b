"""Hugging Face imagefolder: the pictures and a metadata.jsonl beside them."""

from __future__ import annotations

import json
from typing import Any

from noisesieve.exports.parcel import Parcel
from noisesieve.exports.pictures import Places

COLUMNS = ("label", "suggested_label", "verdict", "corruption_probability", "margin", "sha256")


def write(parcel: Parcel) -> list[str]:
    """One line a picture, `file_name` first. JSON Lines, since a CSV would read the label 007 as 7."""
    places, lines = Places(parcel), []
    for i, row in enumerate(parcel.rows):
        parts = ("images", *str(row["path"] or "").split("/")[:-1])
        name = places.put(i, parts)
        if name is not None:
            line: dict[str, Any] = {"file_name": name, **{column: row[column] for column in COLUMNS}, "id": row["id"]}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    (parcel.out / "metadata.jsonl").write_text("".join(lines), encoding="utf-8")
    return [f"datasets.load_dataset('imagefolder', data_dir={parcel.out.name!r})", *places.notes()]
