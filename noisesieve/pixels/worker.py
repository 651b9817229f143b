"""A decoding process: `python -m noisesieve.pixels.worker`. Jobs come as JSON lines, one answer line an image.

A process of its own, not a fork of the caller: a decoder that crashes or hangs takes nothing else with it,
the caller's threads stay out of it, and a script without a main guard can use the Python API.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from noisesieve.pixels.decode import Unreadable, decode, header, thumbnail
from noisesieve.pixels.fetch import fetch
from noisesieve.records import Bytes, Place


def main() -> None:
    """Answer jobs until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    silence = os.open(os.devnull, os.O_WRONLY)
    while silence <= 2:  # started with a closed standard stream: its number must not be given away
        silence = os.dup(silence)
    answers = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    os.dup2(silence, 1)
    os.dup2(silence, 2)  # C libraries print warnings about broken files
    order = json.loads(sys.stdin.readline())
    store: Bytes | Path | None = None
    if order["thumbnails"]:
        store = Path(order["store"])
    elif order["store"] is not None:
        side = order["size"]
        store = np.memmap(order["store"], dtype=np.uint8, mode="r+", shape=(order["slots"], side, side, 3))
    for line in sys.stdin:
        for row, slot, file, column, position in json.loads(line):
            answer = _answer(Place(file, column, position), slot, order["size"], order["max_pixels"], store)
            answers.write(json.dumps([row, *answer]) + "\n")


def _answer(
    place: Place, slot: int, size: int, max_pixels: int, store: Bytes | Path | None
) -> tuple[str | None, str, int, int, bool]:
    """Hash, status, width, height of one image, and whether a failure may pass.

    Its pixels go into the store; where that is a folder, a thumbnail goes there.
    """
    sha256 = None
    try:
        blob = fetch(place)
        sha256 = hashlib.sha256(blob).hexdigest()
        if size == 0:
            return sha256, "ok", *header(blob, max_pixels=max_pixels), False
        if isinstance(store, Path):
            (store / str(slot)).write_bytes(thumbnail(blob, longest=size, max_pixels=max_pixels))
            return sha256, "ok", 0, 0, False
        image = decode(blob, size=size, max_pixels=max_pixels)
        if store is not None:
            store[slot] = image.pixels
        return sha256, "ok", image.width, image.height, False
    except Unreadable as reason:
        return sha256, str(reason), 0, 0, sha256 is None
    except OSError as error:  # the store: a disk that is full
        return sha256, f"cannot be kept: {error.strerror}", 0, 0, True
    except MemoryError:
        return sha256, "cannot be decoded: out of memory", 0, 0, True


if __name__ == "__main__":
    main()
