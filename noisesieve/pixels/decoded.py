"""The decoded images of a dataset, and the thumbnails that their stored pixels give."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from noisesieve.core.records import FileFacts, Ints, Pixels
from noisesieve.pixels.image import thumbnail_of_pixels, uses_training_pixels
from noisesieve.pixels.pixel_cache import CachedPixels

ENCODED = 256  # thumbnails that are encoded at a time


@dataclass(frozen=True)
class Decoded:
    """The pixels of the readable rows, and the final status of every row."""

    file_facts: FileFacts
    rows: Ints  # the readable rows of the index, ascending; row j of `pixels` is rows[j]
    pixels: Pixels
    reused: bool


def thumbnails_of_stored(rows: Ints, decoded: Decoded, longest: int) -> list[bytes | None]:
    """Return thumbnails of stored pixels; None for images that are shown larger than these."""
    images: list[bytes | None] = [None] * len(rows)
    if not isinstance(decoded.pixels, CachedPixels):
        return images
    facts, size = decoded.file_facts, decoded.pixels.size
    position = np.searchsorted(decoded.rows, rows)  # of each row among the readable ones, which are ascending
    readable = facts.readable
    stored = [
        j
        for j, row in enumerate(rows.tolist())
        if readable[row] and uses_training_pixels(int(facts.width[row]), int(facts.height[row]), longest, size)
    ]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as threads:  # Pillow encodes without Python's lock
        for start in range(0, len(stored), ENCODED):
            part = stored[start : start + ENCODED]
            chosen = rows[part].tolist()
            batch = next(iter(decoded.pixels.batches([position[part]])))
            made = threads.map(
                lambda pixels, row: thumbnail_of_pixels(
                    pixels, int(facts.width[row]), int(facts.height[row]), longest=longest
                ),
                batch,
                chosen,
            )
            for j, image in zip(part, made, strict=True):
                images[j] = image
    return images
