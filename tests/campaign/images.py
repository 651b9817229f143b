"""Mutated images: each is decoded, or gets a reason, by a worker that lives on."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from noisesieve.core.records import ImageLocation
from noisesieve.pixels.task_queue import ImageTask, Pass, TaskResult
from noisesieve.pixels.worker_pool import WorkerPool

FORMATS = ("png", "jpg", "webp", "gif", "bmp", "tiff", "ppm", "jp2")
SIZE = 16


def mutate_images(folder: Path, count: int, rng: random.Random) -> Counter[str]:
    """Decode `count` damaged images twice: the same answer both times, and good images among them are unharmed."""
    folder.mkdir()
    good = _originals(folder)
    paths = [_mutated(folder / f"{number}", rng.choice(good), rng) for number in range(count)]
    mixed = [good[number % len(good)] if number % 10 == 0 else path for number, path in enumerate(paths)]
    first, second = _decode(mixed), _decode(mixed)
    calm = dict(zip(good, _decode(good), strict=True))
    found: Counter[str] = Counter()
    for path, one, other in zip(mixed, first, second, strict=True):
        if (one.status, one.sha256, one.data) != (other.status, other.sha256, other.data):
            found[f"FAILED two answers for one image: {one.status!r}, {other.status!r}"] += 1
        elif path in calm:
            same = one.status == "ok" and one.data == calm[path].data
            found["good, unharmed" if same else f"FAILED a good image is harmed: {one.status}"] += 1
        else:
            found["mutated, decoded" if one.status == "ok" else "mutated, with a reason"] += 1
    return found


def _originals(folder: Path) -> list[Path]:
    noise = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    found = []
    for name in FORMATS:
        path = folder / f"good.{name}"
        image = Image.fromarray(noise)
        (image.convert("P") if name == "gif" else image).save(path)
        found.append(path)
    return found


def _mutated(path: Path, source: Path, rng: random.Random) -> Path:
    blob = bytearray(source.read_bytes())
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(max(1, len(blob)))
        action = rng.randrange(5)
        if action == 0 and blob:
            blob[place] ^= 1 << rng.randrange(8)
        elif action == 1:
            del blob[place:]
        elif action == 2:
            blob[place:place] = rng.randbytes(rng.randint(1, 16))
        elif action == 3:
            del blob[place : place + rng.randint(1, 16)]
        else:
            blob[place : place + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"))
    path = path.with_suffix(source.suffix)
    path.write_bytes(bytes(blob))
    return path


def _decode(paths: list[Path]) -> list[TaskResult]:
    tasks = [ImageTask(number, ImageLocation(str(path))) for number, path in enumerate(paths)]
    with WorkerPool(2, max_pixels=2**24, seconds=60) as pool:
        return sorted(pool.run(tasks, Pass(SIZE, send="pixels")), key=lambda answer: answer.key)
