"""Plant known flips into any source, and say where they went."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noisesieve import noise, pixels, sources
from noisesieve.errors import InputError, OutputError
from noisesieve.names import natural_key
from noisesieve.records import Bools, Bytes, Index, Ints
from noisesieve.report import class_codes
from noisesieve.settings import InjectSettings, PixelSettings
from noisesieve.sources.write import table_kind, write_table
from noisesieve.watch import Nobody, Watcher

BLOCK = 4096  # pictures copied at a time
INSTANCE_SIZE = 32  # Algorithm 1 looks at the pictures at this side


@dataclass(frozen=True)
class Planted:
    """The labels after the flips; row i stays row i."""

    labels: list[str]
    flipped: Bools  # (N,)
    classes: list[str]
    counts: Ints  # (K, K): row = true class, column = given class
    expected_rate: float  # what the flips average to; for instance noise not the rate that was asked for
    unreadable: int | None = None  # rows without pixels, which instance noise leaves alone; None: nobody looked


def inject(
    settings: InjectSettings, *, watcher: Watcher | None = None, pause: Callable[[], None] = lambda: None
) -> tuple[Planted, Path | None]:
    """Write a table with planted flips; with it the --root to read it with, where it needs one."""
    watcher = watcher or Nobody()
    if settings.output.exists() and not settings.force:
        raise OutputError(f"{settings.output}: is there already.", "Choose another name with -o, or pass --force.")
    index = sources.read(settings.source)
    table_kind(index, settings.source, settings.output)  # before the pictures are read
    _refuse_lost_images(index, watcher)
    if index.carried is not None and "true_label" in index.carried.column_names:
        watcher.warn(
            "The table has a true_label already: it stays as user_true_label, and the given labels are the truth."
        )
    for note in index.notes:
        watcher.note(note)
    planted = plant(
        index,
        settings.pixels,
        kind=settings.noise,
        rate=settings.rate,
        seed=settings.seed,
        watcher=watcher,
        pause=pause,
    )
    root = write_table(index, settings.source, settings.output, labels=planted.labels, truth=index.labels)
    return planted, root


def _refuse_lost_images(index: Index, watcher: Watcher) -> None:
    """A table whose images are not where it says would only be found out by the scan."""
    if index.kind == "folder" or index.places(0).column is not None:
        return
    lost = [i for i in range(len(index)) if not os.path.exists(index.places(i).file)]
    if len(lost) == len(index):
        raise InputError(f"{index.places(0).file}: not there, nor any other image of the table.", "Is --root right?")
    if lost:
        watcher.warn(f"{len(lost):,} of {len(index):,} images are not there, such as {index.paths[lost[0]]!r}.")


def plant(
    index: Index,
    pixel_settings: PixelSettings,
    *,
    kind: str,
    rate: float,
    seed: int,
    watcher: Watcher,
    pause: Callable[[], None] = lambda: None,
) -> Planted:
    """Flip labels of an index by one of the paper's kinds of noise."""
    classes = sorted(set(index.labels), key=natural_key)
    before = class_codes(index.labels, classes)
    rng = np.random.default_rng(seed)
    unreadable = None
    if kind == "instance":
        rows, pictures = _pictures(index, pixel_settings, watcher, pause)
        unreadable = len(index) - len(rows)
        after = before.copy()
        after[rows] = noise.instance(pictures, before[rows], len(classes), rate=rate, rng=rng)
    else:
        flip = {"symmetric": noise.symmetric, "asymmetric": noise.asymmetric}[kind]
        after = flip(before, len(classes), rate=rate, rng=rng)
    counts = np.bincount(before * len(classes) + after, minlength=len(classes) ** 2).reshape(len(classes), -1)
    return Planted(
        labels=[classes[i] for i in after.tolist()],
        flipped=before != after,
        classes=classes,
        counts=counts,
        expected_rate=noise.truncated_mean(rate) if kind == "instance" else rate,
        unreadable=unreadable,
    )


def _pictures(index: Index, settings: PixelSettings, watcher: Watcher, pause: Callable[[], None]) -> tuple[Ints, Bytes]:
    """The readable rows and their pictures, (N, 32, 32, 3)."""
    looks = pixels.look(index, settings, watcher, pause=pause)
    with tempfile.TemporaryDirectory() as scratch:
        decoded = pixels.decode(index, looks, settings, watcher, size=INSTANCE_SIZE, scratch=Path(scratch), pause=pause)
        if len(decoded.rows) == 0:
            raise InputError(f"{index.root}: no image can be read.", "Is --root right?")
        blocks = np.array_split(np.arange(len(decoded.rows)), -(-len(decoded.rows) // BLOCK))
        pictures = np.empty((len(decoded.rows), INSTANCE_SIZE, INSTANCE_SIZE, 3), dtype=np.uint8)
        for rows, part in zip(blocks, decoded.pixels.batches(blocks), strict=True):
            pictures[rows] = part
    return decoded.rows, pictures
