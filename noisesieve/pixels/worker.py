"""A decoding process: `python -m noisesieve.pixels.worker`. Reads tasks as JSON lines, with the files that
were read already behind them; writes one line per image, and after it the bytes of what was asked for.

It is a new process, not a fork: a decoder that crashes or hangs affects nothing else, threads of the caller do no harm,
and a script without a main guard can use the Python API.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import signal
import sys

import numpy as np
from PIL import Image

from noisesieve.core.records import ImageLocation
from noisesieve.pixels.fetch import fetch
from noisesieve.pixels.image import Unreadable, decode_image, make_thumbnail, read_header
from noisesieve.pixels.known import KnownContents
from noisesieve.pixels.task_queue import Pass

if sys.platform != "win32":
    import resource

KEPT_BYTES = 2**22  # of a file that is sent back, so that it is not read twice
SPARE_BYTES, BYTES_PER_PIXEL = 2**31, 16  # memory of a worker beyond its start: RGBA and a copy need 8 per pixel


def main() -> None:
    """Run tasks until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C
    null = os.open(os.devnull, os.O_WRONLY)
    while null <= 2:  # if a standard stream was closed at start, its descriptor must not be reused
        null = os.dup(null)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(null, 1)
    os.dup2(null, 2)  # C libraries print warnings about broken files
    max_pixels = int(sys.stdin.buffer.readline())
    Image.MAX_IMAGE_PIXELS = None  # our own limit, `max_pixels`, replaces Pillow's, which warns before it allocates
    _limit_memory(max_pixels)
    while line := sys.stdin.buffer.readline():
        work, tasks = json.loads(line)
        work = Pass(**work)
        blobs = [sys.stdin.buffer.read(length) for *_, length in tasks]  # all, or the caller could not read results
        for (key, *location, _), blob in zip(tasks, blobs, strict=True):
            result, data = _run_task(ImageLocation(*location), blob, work, max_pixels)
            results.write(json.dumps([key, *result, len(data)]).encode() + b"\n" + data)
            results.flush()


def _limit_memory(max_pixels: int) -> None:
    """Let an image that needs far more memory than it should fail alone, where the system supports that (Linux)."""
    if sys.platform != "linux":
        return  # the limit of pixels alone holds there
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    most = now + SPARE_BYTES + BYTES_PER_PIXEL * max_pixels
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _run_task(
    location: ImageLocation, blob: bytes, work: Pass, max_pixels: int
) -> tuple[tuple[str | None, str, int, int, bool], bytes]:
    """Return hash, status, width and height of one image, whether a failure is transient, and what is to be sent.

    The width is also returned if only the header can be read.
    """
    sha256 = None
    try:
        blob = blob or fetch(location)
        sha256 = hashlib.sha256(blob).hexdigest()
        if work.send == "thumbnail":
            data = make_thumbnail(blob, longest=work.size, training_size=work.training_size, max_pixels=max_pixels)
            return (sha256, "ok", 0, 0, False), data
        if work.size == 0 or sha256 in _known(work.known):
            size = read_header(blob, max_pixels=max_pixels)
            return (sha256, "ok", *size, False), blob if work.send == "file" and len(blob) <= KEPT_BYTES else b""
        image = decode_image(blob, size=work.size, max_pixels=max_pixels)
        data = np.ascontiguousarray(image.pixels).tobytes() if work.send == "pixels" else b""
        return (sha256, "ok", image.width, image.height, False), data
    except Unreadable as reason:
        return (sha256, str(reason), *_size_in_header(blob, max_pixels), sha256 is None), b""
    except MemoryError:
        return (sha256, "cannot be decoded: out of memory", 0, 0, True), b""


@functools.lru_cache(maxsize=1)
def _known(file: str | None) -> KnownContents:
    return KnownContents.load(file)


def _size_in_header(blob: bytes, max_pixels: int) -> tuple[int, int]:
    """Return width and height of an image that cannot be decoded; zeros if its header cannot be read either."""
    try:
        return read_header(blob, max_pixels=max_pixels)
    except (Unreadable, MemoryError):
        return 0, 0


if __name__ == "__main__":
    main()
