"""`noisesieve inject`: plant known label errors into a copy of any dataset's table."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noisesieve import noise
from noisesieve.commands.measure_settings import InjectSettings
from noisesieve.core.columns import Texts
from noisesieve.core.errors import InputError, OutputError
from noisesieve.core.progress import Session
from noisesieve.core.records import Bools, Bytes, Index, Ints
from noisesieve.core.text import natural_key
from noisesieve.pixels.decoder import Decoder
from noisesieve.pixels.pixel_settings import PixelSettings
from noisesieve.sources.containers import read_index
from noisesieve.sources.write_table import table_kind, write_index

BLOCK = 4096  # images copied at a time
INSTANCE = ("instance", "instance-raw")  # noise that depends on the image
INSTANCE_SIZE = 32  # side of the images for Algorithm 1, in pixels


MOST_CLASSES = 5000  # flips are counted by pairs of classes


@dataclass(frozen=True)
class PlantedNoise:
    """Labels with planted flips. Row i stays row i."""

    labels: list[str]
    flipped: Bools  # (N,)
    classes: list[str]
    counts: Ints  # (K, K): row = true class, column = given class
    expected_rate: float  # expected share of flips; for instance noise not the rate that was asked for
    unreadable: int | None = None  # unreadable rows, which instance noise does not flip; None: images were not read


def inject(settings: InjectSettings, *, session: Session | None = None) -> tuple[PlantedNoise, Path | None]:
    """Write a table with planted flips. Also returns the --root to read it with, or None if it needs none."""
    session = session or Session()
    if settings.output.exists() and not settings.force:
        raise OutputError(f"{settings.output}: exists already.", "Choose another name with -o, or pass --force.")
    index = read_index(settings.source)
    table_kind(index, settings.source, settings.output)  # refuse a wrong name before the images are read
    _refuse_missing_images(index, session)
    if index.carried is not None and "true_label" in index.carried.column_names:
        session.warn("The table has a column true_label already: it becomes user_true_label.")
    for note in index.notes:
        session.note(note)
    planted = plant_noise(
        index,
        settings.pixels,
        kind=settings.noise,
        rate=settings.rate,
        seed=settings.seed,
        session=session,
    )
    labels = Texts(planted.labels)
    root = write_index(index, settings.source, settings.output, labels=labels, truth=index.column("labels"))
    return planted, root


def _refuse_missing_images(index: Index, session: Session) -> None:
    """Refuse a table none of whose images exists: the error would otherwise appear only in the scan."""
    if index.kind == "folder" or index.locate(0).column is not None:
        return
    missing = [i for i in range(len(index)) if not os.path.exists(index.locate(i).file)]
    if len(missing) == len(index):
        raise InputError(f"{index.locate(0).file}: missing, as is every image of the table.", "Is --root right?")
    if missing:
        session.warn(f"{len(missing):,} of {len(index):,} images are missing, such as {index.paths[missing[0]]!r}.")


def plant_noise(
    index: Index,
    pixel_settings: PixelSettings,
    *,
    kind: str,
    rate: float,
    seed: int,
    session: Session,
) -> PlantedNoise:
    """Flip labels of an index with symmetric, asymmetric or instance-dependent noise."""
    classes = sorted(index.column("labels").distinct(), key=natural_key)
    before = index.column("labels").codes(classes)
    if len(classes) > MOST_CLASSES:
        raise InputError(f"{len(classes):,} classes: too many to plant noise into.", "Is --label-column right?")
    rng = np.random.default_rng(seed)
    unreadable = None
    if kind in INSTANCE:
        rows, images = _read_images(index, pixel_settings, session)
        unreadable = len(index) - len(rows)
        after = before.copy()
        after[rows] = noise.instance(images, before[rows], len(classes), rate=rate, rng=rng, raw=kind == INSTANCE[1])
    else:
        flip = {"symmetric": noise.symmetric, "asymmetric": noise.asymmetric}[kind]
        after = flip(before, len(classes), rate=rate, rng=rng)
    counts = np.bincount(before * len(classes) + after, minlength=len(classes) ** 2).reshape(len(classes), -1)
    return PlantedNoise(
        labels=[classes[i] for i in after.tolist()],
        flipped=before != after,
        classes=classes,
        counts=counts,
        expected_rate=noise.truncated_mean(rate) if kind in INSTANCE else rate,
        unreadable=unreadable,
    )


def _read_images(index: Index, settings: PixelSettings, session: Session) -> tuple[Ints, Bytes]:
    """Return the readable rows and their images, (N, 32, 32, 3)."""
    with tempfile.TemporaryDirectory() as scratch, Decoder(settings, session) as decoder:
        facts = decoder.read(index, lambda _: INSTANCE_SIZE)
        decoded = decoder.decode(index, facts, size=INSTANCE_SIZE, scratch=Path(scratch))
        if len(decoded.rows) == 0:
            raise InputError(f"{index.root}: no image can be read.", "Is --root right?")
        blocks = np.array_split(np.arange(len(decoded.rows)), -(-len(decoded.rows) // BLOCK))
        images = np.empty((len(decoded.rows), INSTANCE_SIZE, INSTANCE_SIZE, 3), dtype=np.uint8)
        for rows, part in zip(blocks, decoded.pixels.batches(blocks), strict=True):
            images[rows] = part
    return decoded.rows, images
