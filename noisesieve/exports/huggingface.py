"""Hugging Face imagefolder: the pictures and a metadata.jsonl beside them."""

from __future__ import annotations

import json

from noisesieve.exports.parcel import Parcel, Written
from noisesieve.exports.pictures import Places

COLUMNS = ("label", "suggested_label", "verdict", "corruption_probability", "margin", "id", "path", "split", "sha256")


def write(parcel: Parcel) -> Written:
    """One line a picture, `file_name` first. JSON Lines, since a CSV would read the label 007 as 7.

    The pictures have numbers for names: from a folder or a name like `train` datasets would make splits, and forget the
    rest of the metadata.
    """
    places = Places(parcel)
    columns = [name for name in COLUMNS if name in parcel.table.column_names]
    names = places.put_all(lambda row: (("images",), f"{row['row']:08d}"))
    with (parcel.out / "metadata.jsonl").open("w", encoding="utf-8", errors="backslashreplace") as file:
        for name, row in zip(names, parcel.rows, strict=True):
            if name is not None:
                entry = {"file_name": name, **{column: row[column] for column in columns}}
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
    how = f"datasets.load_dataset('imagefolder', data_dir={str(parcel.shown)!r})"
    return Written(sum(name is not None for name in names), [how, *places.notes()])
