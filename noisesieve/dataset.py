"""A dataset ready to learn from: what pipeline, bench and whoever else trains have in common."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from noisesieve import pixels, report
from noisesieve.errors import InputError
from noisesieve.learn.plan import image_size, plan, start
from noisesieve.learn.pretrained import signed, weights_file
from noisesieve.learn.world import World
from noisesieve.names import natural_key
from noisesieve.records import Index, Ints, Looks
from noisesieve.settings import Recipe, ScanSettings
from noisesieve.watch import Watcher


@dataclass(frozen=True)
class Dataset:
    """The readable rows, ready to learn from."""

    index: Index
    decoded: pixels.Decoded
    classes: list[str]  # those that occur in readable rows, in natural order
    codes: Ints  # (N,) labels of the readable rows as numbers
    recipe: Recipe
    weights: Path | None  # the file that training starts from

    @property
    def trusted(self) -> Any:
        trusted = self.index.trusted
        return np.zeros(len(self.codes), dtype=np.bool_) if trusted is None else trusted[self.decoded.rows]


def prepare(
    index: Index,
    looks: Looks,
    settings: ScanSettings,
    world: World,
    watcher: Watcher,
    pause: Callable[[], None],
    *,
    scratch: Path,
) -> Dataset:
    """Decode at the size that suits the readable images. Unreadable ones must not even sway that choice."""
    device = world.device.type
    size = image_size(settings.wishes, longest_sides=sides(looks), device=device)
    while True:
        decoded = pixels.decode(index, looks, settings.pixels, watcher, size=size, scratch=scratch, pause=pause)
        wanted = image_size(settings.wishes, longest_sides=sides(decoded.looks), device=device)
        if wanted == size:
            break
        size = wanted
    report_unreadable(index, decoded.looks, watcher)
    labels = [index.labels[i] for i in decoded.rows.tolist()]
    classes = sorted(set(labels), key=natural_key)
    if len(classes) < 2:
        shutil.rmtree(scratch, ignore_errors=True)
        raise InputError(
            f"{index.root}: {len(labels)} of {len(index)} images can be read, in {len(classes)} classes.",
            "A sieve needs two classes at least. Is --root right?",
        )
    if decoded.reused:
        watcher.note(f"Pixels at {size} px were in the cache.")
    recipe = plan(
        settings.wishes, rows=len(labels), classes=len(classes), longest_sides=sides(decoded.looks), device=device
    )
    weights, _ = start(settings.wishes, longest_sides=sides(decoded.looks), device=device)
    file = weights_file(weights, recipe.backbone)
    return Dataset(index, decoded, classes, report.class_codes(labels, classes), signed(recipe, file), file)


def sides(looks: Looks) -> Ints:
    """The longer side of every readable picture."""
    return np.maximum(looks.width, looks.height)[looks.readable]


def report_unreadable(index: Index, looks: Looks, watcher: Watcher, most: int = 20) -> None:
    """Name the files that cannot be read, and why: the first ones, and a count."""
    bad = np.flatnonzero(~looks.readable).tolist()
    for row in bad[:most]:
        watcher.warn(f"{index.paths[row] or index.ids[row]}: {looks.status[row]}")
    if len(bad) > most:
        watcher.warn(f"… and {len(bad) - most} more that cannot be read; the report names them all.")
