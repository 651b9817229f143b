"""Pixels → Features: the output of a frozen backbone for every image, computed once and cached for later runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from noisesieve.core.files import digest
from noisesieve.core.recipes import HeadRecipe
from noisesieve.core.records import Ints
from noisesieve.core.settings import PixelSettings
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.device import Precision, make_deterministic
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.networks.backbones import Network, build
from noisesieve.learn.networks.embed import block_size, extract_features
from noisesieve.learn.networks.pretrained import Statistics, load_backbone, statistics_of
from noisesieve.pixels import Decoded
from noisesieve.pixels.cache import Cache, CacheEntry, cache_folder

FEATURES_VERSION = 1  # part of the cache key: raise it when the computation of features changes
Halves = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Features:
    """Features of every readable row, (N, V, D) in float16: the plain view, then the mirrored one unless off."""

    tensor: Tensor
    contents: Tensor  # (N,) rows with equal numbers have the same image
    statistics: Statistics  # mean and deviation per channel that the images were normalized with
    reused: bool


def compute_features(
    decoded: Decoded,
    recipe: HeadRecipe,
    weights: Path,
    settings: PixelSettings,
    session: TrainingSession,
    *,
    scratch: Path,
) -> Features:
    """Return the features of all rows, from the cache as far as they are there. Equal images are computed once."""
    device = session.device
    make_deterministic(device)
    network = build(recipe.backbone, classes=2, image_size=recipe.image_size, seed=0)
    load_backbone(network, weights)
    views, width = 1 if recipe.flip is False else 2, network.fc.in_features
    loader = BatchLoader(decoded.pixels, device, statistics=statistics_of(recipe.weights, recipe.backbone))
    statistics = loader.mean.tolist(), loader.std.tolist()
    hashes = [str(decoded.file_facts.sha256[row]) for row in decoded.rows.tolist()]
    contents = sorted(set(hashes))
    cache = features_cache(cache_folder(settings, session), recipe, settings, device, statistics)
    first = {sha: row for row, sha in reversed(list(enumerate(hashes)))}

    def fill(entry: CacheEntry) -> None:
        slots = np.array(entry.pending(), dtype=np.int64)
        slots = slots[np.argsort([first[contents[i]] for i in slots.tolist()], kind="stable")]  # in row order
        rows = np.array([first[contents[i]] for i in slots.tolist()], dtype=np.int64)
        _fill(entry, slots, rows, network, loader, session, views=views)

    entry, reused = cache.complete(contents, fill, scratch=scratch)
    return _read_features(entry, hashes, views, width, statistics, reused=reused)


def features_cache(
    folder: Path | None, recipe: HeadRecipe, settings: PixelSettings, device: torch.device, statistics: Statistics
) -> Cache:
    """Return the cache of the features that this recipe computes on this device."""
    views = 1 if recipe.flip is False else 2
    with torch.device("meta"):  # no memory, no initialization: only its shape is asked for
        width = build(recipe.backbone, classes=2, image_size=recipe.image_size, seed=0).fc.in_features
    settings_hash = digest([FEATURES_VERSION, statistics, str(Precision(device).dtype), device.type])
    return Cache.of_features(
        folder,
        size=recipe.image_size,
        max_pixels=settings.max_pixels,
        backbone_key=f"{recipe.backbone}-{recipe.weights_sha256[:16]}-{settings_hash[:8]}-{views}",
        item_bytes=views * width * 2,
    )


def _fill(
    entry: CacheEntry,
    slots: Ints,
    rows: Ints,
    network: Network,
    loader: BatchLoader,
    session: TrainingSession,
    *,
    views: int,
) -> None:
    """Compute the features of these rows and write them to their slots."""
    device = session.device
    network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    store = _open_features(entry, views, network.fc.in_features, write=True)
    session.stage("features", len(rows))
    size = block_size(device)
    batches = list(torch.from_numpy(rows).split(size))
    features = extract_features(network, loader, batches, mirrored=views == 2, device=device)
    for part, values in zip(torch.from_numpy(slots).split(size), features, strict=True):
        store[part.numpy()] = values.clamp(-65504, 65504).half().numpy()
        for slot in part.tolist():
            entry.status[slot] = "ok"
        session.advance(len(part))
        session.pause()
    session.finish()


def _open_features(entry: CacheEntry, views: int, width: int, *, write: bool) -> Halves:
    store: Halves = np.memmap(entry.file, dtype=np.float16, mode="r+" if write else "r")
    return store.reshape(-1, views, width)


def _read_features(
    entry: CacheEntry, hashes: list[str], views: int, width: int, statistics: Statistics, *, reused: bool
) -> Features:
    """Read the features of the rows into memory, in the order of the rows."""
    slot = entry.known()
    slots = np.array([slot[sha] for sha in hashes], dtype=np.int64)
    features = torch.from_numpy(_open_features(entry, views, width, write=False)[slots])
    return Features(features, torch.from_numpy(slots), statistics, reused)
