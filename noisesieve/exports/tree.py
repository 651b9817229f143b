"""A folder tree to look through: given/suggested/file; or, for clean rows, an image folder to train on."""

from __future__ import annotations

from noisesieve.exports.parcel import Parcel
from noisesieve.exports.pictures import Places


def write(parcel: Parcel) -> list[str]:
    """Links or copies. A suspect without a suggestion lies under `unclear`."""
    places = Places(parcel)
    for i, row in enumerate(parcel.rows):
        if row["verdict"] == "corrupted":
            places.put(i, (row["label"], row["suggested_label"] or "unclear"))
        else:
            places.put(i, (row["label"],))
    return places.notes()
