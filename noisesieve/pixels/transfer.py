"""Pixels on their way to other processes: arrays in NumPy and Arrow files, and a small JSON beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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
    columns = {
        "file": [location.file for location in pixels.locations],
        "column": pa.array([location.column for location in pixels.locations], pa.string()),
        "position": [location.position for location in pixels.locations],
        "sha256": pixels.sha256,
    }
    pq.write_table(pa.table(columns), folder / "locations.parquet")
    names = ("size", "workers", "max_pixels", "seconds")
    write_json(folder / "pixels.json", {name: getattr(pixels, name) for name in names})


def load_pixels(folder: Path) -> Pixels:
    """Open the pixels that `save_pixels` described."""
    document = json.loads((folder / "pixels.json").read_text(encoding="utf-8"))
    if "file" in document:
        return CachedPixels(Path(document["file"]), document["size"], np.load(folder / "slots.npy"))
    table = pq.read_table(folder / "locations.parquet")
    columns = (table[name].to_pylist() for name in ("file", "column", "position"))
    locations = [ImageLocation(*location) for location in zip(*columns, strict=True)]
    return StreamedPixels(locations=locations, sha256=table["sha256"].to_pylist(), **document)
