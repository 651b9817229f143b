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
from noisesieve.pixels.cache import FEATURES, PENDING, Cache, CacheEntry, cache_folder, copy_known, make_store

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
    folder = cache_folder(settings, session)
    item_bytes = views * width * 2
    cache = None
    if folder is not None:
        settings_hash = digest([FEATURES_VERSION, statistics, str(Precision(device).dtype), device.type])
        backbone_key = f"{recipe.backbone}-{recipe.weights_sha256[:16]}-{settings_hash[:8]}-{views}"
        cache = Cache.of_features(
            folder,
            size=recipe.image_size,
            max_pixels=settings.max_pixels,
            backbone_key=backbone_key,
            item_bytes=item_bytes,
        )
    cached = None if cache is None else cache.best(set(contents))
    if cached is not None and set(contents) <= cached.known().keys():
        return _read_features(cached, hashes, views, width, statistics, reused=True)
    building = scratch if cache is None else cache.build()
    building.mkdir(parents=True, exist_ok=True)
    entry = CacheEntry(building, contents, [PENDING] * len(contents), FEATURES)
    make_store(entry.file, len(contents), item_bytes)
    if cached is not None:
        entry = copy_known(cached, entry, item_bytes)
    first = {sha: row for row, sha in reversed(list(enumerate(hashes)))}
    slots = np.array([i for i, status in enumerate(entry.status) if status == PENDING], dtype=np.int64)
    slots = slots[np.argsort([first[contents[i]] for i in slots.tolist()], kind="stable")]  # in the order of the rows
    rows = np.array([first[contents[i]] for i in slots.tolist()], dtype=np.int64)
    try:
        _fill(entry, slots, rows, network, loader, session, views=views)
    finally:
        if cache is not None:  # also after a stop, so that the next run continues from here
            entry = cache.keep(entry)
    return _read_features(entry, hashes, views, width, statistics, reused=False)


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
