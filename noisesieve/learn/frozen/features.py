"""Pixels → Features: the outputs of a frozen backbone at several depths, computed once and kept for later runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from noisesieve.core.columns import Hashes
from noisesieve.core.errors import OutputError
from noisesieve.core.files import digest
from noisesieve.core.records import Ints
from noisesieve.core.row_store import CHUNK, WORTH_AN_INDEX, RowFile, forget_pages
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.device import Precision, kept_memory, prepare_device
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.networks.backbones import build, depths_of
from noisesieve.learn.networks.embed import extract_depths
from noisesieve.learn.networks.pretrained import Statistics, load_backbone, statistics_of
from noisesieve.learn.recipes import HeadRecipe
from noisesieve.pixels.decoded import Decoded
from noisesieve.pixels.image import DECODER_VERSION
from noisesieve.pixels.pixel_cache import cache_folder, warn_uncached
from noisesieve.pixels.pixel_settings import PixelSettings

FEATURES_VERSION = 2  # part of the cache key: raise it when the computation of features changes
Halves = npt.NDArray[np.float16]


class DepthFile(RowFile):
    """The features of one depth: rows of (views, width) in float16."""

    def __init__(self, folder: Path, name: str, *, views: int, width: int) -> None:
        super().__init__(folder / f"{name}.f16", shape=(views, width), dtype="<f2")
        self.name = name


@dataclass(frozen=True)
class Features:
    """Features of every readable row at every depth of a backbone: the plain view, then the mirrored one unless off."""

    maps: dict[str, Halves]  # by depth: (slots, V, D), in memory or mapped
    slots: dict[str, Ints]  # by depth: (N,) the slot of each row
    contents: Tensor  # (N,) rows with equal numbers have the same image
    statistics: Statistics  # mean and deviation per channel that the images were normalized with
    reused: bool

    def __len__(self) -> int:
        return len(self.contents)

    @classmethod
    def in_memory(cls, maps: dict[str, Halves], contents: Tensor | None = None) -> Features:
        """Return features that were computed elsewhere, (N, V, D) by depth; row i is in slot i."""
        count = len(next(iter(maps.values())))
        slots = dict.fromkeys(maps, np.arange(count))
        return cls(maps, slots, torch.arange(count) if contents is None else contents, ([], []), reused=False)

    @property
    def depths(self) -> tuple[str, ...]:
        return tuple(self.maps)

    @property
    def views(self) -> int:
        return int(next(iter(self.maps.values())).shape[1])

    def take(self, rows: Ints) -> Features:
        """Return the features of some rows."""
        return replace(
            self,
            slots={depth: slots[rows] for depth, slots in self.slots.items()},
            contents=self.contents[torch.from_numpy(rows)],
        )

    def read(self, depth: str, rows: Ints | slice, *, view: int | None = None) -> Tensor:
        """Return the features of some rows in float32, (B, V, D), or (B, D) of one view."""
        slots = self.slots[depth][rows]
        part = self.maps[depth][slots] if view is None else self.maps[depth][slots, view]
        values = torch.from_numpy(part.astype(np.float32))
        forget_pages(self.maps[depth])  # also of a few rows: the system reads whole stretches around them
        return values


def compute_features(
    decoded: Decoded,
    recipe: HeadRecipe,
    weights: Path,
    settings: PixelSettings,
    session: TrainingSession,
    *,
    scratch: Path,
) -> Features:
    """Return the features of all rows, from the store as far as they are there. Equal images are computed once.

    The network is built only if something is missing.
    """
    device = session.device
    prepare_device(device, deterministic=session.deterministic)
    loader = BatchLoader(decoded.pixels, device, statistics=statistics_of(recipe.weights, recipe.backbone))
    statistics = loader.statistics
    hashes = decoded.file_facts.hashes.take(decoded.rows)
    root = cache_folder(settings, session)
    folder = scratch if root is None else feature_folder(root, recipe, settings, device, statistics)
    try:
        files, reused = _complete(folder, hashes, recipe, weights, loader, session)
    except OSError as error:
        if root is None:
            raise OutputError(f"{folder}: {error.strerror or error}.", "Free some space, or choose -o.") from error
        warn_uncached(session, root, error)
        folder = scratch
        files, reused = _complete(folder, hashes, recipe, weights, loader, session)
    if folder.exists():
        os.utime(folder)  # the time of last use, for `noisesieve cache --clear --older-than`
    return Features(
        maps={file.name: file.open() for file in files},
        slots={file.name: file.slots(hashes) for file in files},
        contents=torch.from_numpy(numbered_by_hash(hashes)),
        statistics=statistics,
        reused=reused,
    )


def numbered_by_hash(hashes: Hashes) -> Ints:
    """Return (N,) numbers without gaps in the order of the hashes, equal for equal contents."""
    _, numbers = np.unique(hashes.raw().view("S32").reshape(-1), return_inverse=True)
    return numbers.astype(np.int64)


def _complete(
    folder: Path, hashes: Hashes, recipe: HeadRecipe, weights: Path, loader: BatchLoader, session: TrainingSession
) -> tuple[list[DepthFile], bool]:
    """Return files with the features of all contents, and whether they were all there."""
    files = depth_files(folder, recipe)
    if damaged := max(file.drop_damaged(hashes) for file in files):
        session.warn(f"{folder}: {damaged:,} rows of features are damaged: they are computed again.")
    missing = np.any([file.missing(hashes) for file in files], axis=0)
    if missing.any():
        _, places = np.unique(hashes.codes(), return_index=True)  # the first row of every content
        first = np.sort(places)
        rows = first[missing[first]].astype(np.int64)
        _fill(files, hashes.take(rows), rows, recipe, weights, loader, session)
    return files, not missing.any()


def feature_folder(
    root: Path, recipe: HeadRecipe, settings: PixelSettings, device: torch.device, statistics: Statistics
) -> Path:
    """Return the folder of the features that this recipe computes on this device."""
    mark = digest([FEATURES_VERSION, statistics, str(Precision(device).dtype), device.type])[:8]
    decoding = f"{recipe.image_size}px-v{DECODER_VERSION}-{settings.max_pixels:x}"
    return root / f"{decoding}-{recipe.backbone.replace('/', '.')}-{recipe.weights_sha256[:16]}-{mark}-{_views(recipe)}"


def depth_files(folder: Path, recipe: HeadRecipe) -> list[DepthFile]:
    """Return the stored features of every depth of the recipe's backbone."""
    return [
        DepthFile(folder, depth.name, views=_views(recipe), width=depth.width) for depth in depths_of(recipe.backbone)
    ]


def feature_bytes(recipe: HeadRecipe) -> int:
    """Return the size of a row's stored features."""
    return _views(recipe) * 2 * sum(depth.width for depth in depths_of(recipe.backbone))


def _views(recipe: HeadRecipe) -> int:
    return 1 if recipe.flip is False else 2


def _fill(
    files: list[DepthFile],
    contents: Hashes,
    rows: Ints,
    recipe: HeadRecipe,
    weights: Path,
    loader: BatchLoader,
    session: TrainingSession,
) -> None:
    """Compute the features of these contents, and append them chunk by chunk."""
    names = tuple(file.name for file in files)
    network = build(recipe.backbone, classes=2, image_size=recipe.image_size, seed=0, depths=names)
    load_backbone(network, weights)
    network.fuse()
    network = network.to(session.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    session.stage("features", len(rows))
    with kept_memory(session.device):
        parts = extract_depths(network, loader, torch.from_numpy(rows), mirrored=_views(recipe) == 2, chunk=CHUNK)
        for start, part in zip(range(0, len(rows), CHUNK), parts, strict=True):
            for file in files:
                file.append(contents[start : start + CHUNK], part[file.name].clamp(-65504, 65504).half().numpy())
            session.advance(min(CHUNK, len(rows) - start))
            session.pause()
    for file in files:
        if len(rows) >= WORTH_AN_INDEX:
            file.write_sorted_index()
    session.finish()
