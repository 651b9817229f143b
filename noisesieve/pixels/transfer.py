"""Pixels on their way to other processes: arrays in NumPy and Arrow files, and a small JSON beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.core.columns import BLOCK, HASH_TYPE, Hashes, Texts
from noisesieve.core.files import write_json
from noisesieve.core.records import ImageLocation, Pixels
from noisesieve.pixels.pixel_cache import CachedPixels
from noisesieve.pixels.stream import StreamedPixels


def save_pixels(pixels: Pixels, folder: Path) -> None:
    """Write what another process needs to open the same pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(pixels, CachedPixels):
        np.save(folder / "slots.npy", pixels.slots)
        write_json(folder / "pixels.json", {"file": str(pixels.file), "size": pixels.size})
        return
    assert isinstance(pixels, StreamedPixels)
    kinds = {"file": pa.string(), "column": pa.string(), "position": pa.int64(), "sha256": HASH_TYPE}
    schema = pa.schema(kinds)
    with pq.ParquetWriter(folder / "locations.parquet", schema) as writer:
        for start in range(0, len(pixels), BLOCK):
            locations = [pixels.locate(row) for row in range(start, min(start + BLOCK, len(pixels)))]
            columns = zip(*((location.file, location.column, location.position) for location in locations), strict=True)
            arrays = [pa.array(values, kind.type) for values, kind in zip(columns, schema, strict=False)]
            writer.write_table(pa.table([*arrays, pixels.hashes.array.slice(start, BLOCK)], schema=schema))
    names = ("size", "workers", "max_pixels", "seconds")
    write_json(folder / "pixels.json", {name: getattr(pixels, name) for name in names})


def load_pixels(folder: Path) -> Pixels:
    """Open the pixels that `save_pixels` described."""
    document = json.loads((folder / "pixels.json").read_text(encoding="utf-8"))
    if "file" in document:
        return CachedPixels(Path(document["file"]), document["size"], np.load(folder / "slots.npy"))
    table = pq.read_table(folder / "locations.parquet", read_dictionary=["file", "column"]).combine_chunks()
    files, columns, positions = Texts(table["file"]), Texts(table["column"]), table["position"].to_numpy()
    return StreamedPixels(
        locate=lambda row: ImageLocation(files[row], columns[row], int(positions[row])),
        hashes=Hashes(table["sha256"]),
        **document,
    )
