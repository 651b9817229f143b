"""A folder tree to look through: given/suggested/file; or, for clean rows, an image folder to train on."""

from __future__ import annotations

import os
from typing import Any

from noisesieve.exports.parcel import Parcel, Written
from noisesieve.exports.pictures import Places

UNCLEAR = "no suggestion"


def write(parcel: Parcel) -> Written:
    """Links or copies, below the split where the dataset has splits."""
    places = Places(parcel)
    names = places.put_all(_place)
    return Written(sum(name is not None for name in names), places.notes())


def _place(row: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    folders: tuple[str, ...] = (row["split"], row["label"]) if row.get("split") else (row["label"],)
    if row["verdict"] == "corrupted":
        folders += (row["suggested_label"] or UNCLEAR,)
    stem = os.path.splitext(str(row["path"]).rsplit("/", 1)[-1])[0] if row["path"] is not None else str(row["row"])
    return folders, stem
