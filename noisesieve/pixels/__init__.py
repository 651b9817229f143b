"""Room 2, DECODE: Index → Pixels. Every image once, in worker processes, to uint8 at training size."""

from __future__ import annotations

from noisesieve.pixels.decode import (
    Ahead,
    Decoded,
    decode,
    inspect_files,
    thumbnails,
    validate,
)
from noisesieve.pixels.fetch import fetch
from noisesieve.pixels.pixel_cache import cache_folder, default_cache_dir
from noisesieve.pixels.stream import NoPixels
from noisesieve.pixels.transfer import load_pixels, save_pixels

__all__ = [
    "Ahead",
    "Decoded",
    "NoPixels",
    "cache_folder",
    "decode",
    "default_cache_dir",
    "fetch",
    "inspect_files",
    "load_pixels",
    "save_pixels",
    "thumbnails",
    "validate",
]
