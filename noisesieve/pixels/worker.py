"""A decoding process: `python -m noisesieve.pixels.worker`. Reads tasks as JSON lines, writes one line per image.

It is a new process, not a fork: a decoder that crashes or hangs affects nothing else, threads of the caller do no harm,
and a script without a main guard can use the Python API.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from noisesieve.core.records import Bytes, ImageLocation
from noisesieve.pixels.fetch import fetch
from noisesieve.pixels.image import Unreadable, decode_image, make_thumbnail, read_header


def main() -> None:
    """Run tasks until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C
    null = os.open(os.devnull, os.O_WRONLY)
    while null <= 2:  # if a standard stream was closed at start, its descriptor must not be reused
        null = os.dup(null)
    results = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    os.dup2(null, 1)
    os.dup2(null, 2)  # C libraries print warnings about broken files
    config = json.loads(sys.stdin.readline())
    store: Bytes | Path | None = None
    if config["thumbnails"]:
        store = Path(config["store"])
    elif config["store"] is not None:
        side = config["size"]
        store = np.memmap(config["store"], dtype=np.uint8, mode="r+", shape=(config["slots"], side, side, 3))
    for line in sys.stdin:
        for row, slot, file, column, position in json.loads(line):
            result = _run_task(ImageLocation(file, column, position), slot, config["size"], config["max_pixels"], store)
            results.write(json.dumps([row, *result]) + "\n")


def _run_task(
    location: ImageLocation, slot: int, size: int, max_pixels: int, store: Bytes | Path | None
) -> tuple[str | None, str, int, int, bool]:
    """Return hash, status, width and height of one image, and whether a failure is transient.

    Its pixels are written to the store; if that is a folder, a thumbnail is written there.
    """
    sha256 = None
    try:
        blob = fetch(location)
        sha256 = hashlib.sha256(blob).hexdigest()
        if size == 0:
            return sha256, "ok", *read_header(blob, max_pixels=max_pixels), False
        if isinstance(store, Path):
            (store / str(slot)).write_bytes(make_thumbnail(blob, longest=size, max_pixels=max_pixels))
            return sha256, "ok", 0, 0, False
        image = decode_image(blob, size=size, max_pixels=max_pixels)
        if store is not None:
            store[slot] = image.pixels
        return sha256, "ok", image.width, image.height, False
    except Unreadable as reason:
        return sha256, str(reason), 0, 0, sha256 is None
    except OSError as error:  # writing to the store: the disk is full
        return sha256, f"cannot be stored: {error.strerror}", 0, 0, True
    except MemoryError:
        return sha256, "cannot be decoded: out of memory", 0, 0, True


if __name__ == "__main__":
    main()
