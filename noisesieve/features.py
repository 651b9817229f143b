"""Pixels → Features: what a frozen backbone sees in every picture, computed once and kept for later runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from noisesieve import pixels
from noisesieve.dataset import Dataset
from noisesieve.files import digest
from noisesieve.learn.backbones import Network, build
from noisesieve.learn.embed import block_size, views_of
from noisesieve.learn.feed import Feed, Precision, make_deterministic
from noisesieve.learn.pretrained import Statistics, adopt, statistics_of
from noisesieve.pixels.cache import FEATURES, PENDING, Cache, Entry, copy_known, make_store
from noisesieve.records import Ints
from noisesieve.settings import PixelSettings
from noisesieve.watch import Watcher

FEATURES_VERSION = 1  # of how they are made
Halves = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Seen:
    """Features of every readable row, (N, V, D) in float16: the plain view, and the mirrored one where it may count."""

    tensor: Tensor
    contents: Tensor  # (N,) rows with the same number are the same picture
    statistics: Statistics  # mean and deviation a channel of the pictures that the backbone was shown
    reused: bool


def features_of(
    dataset: Dataset,
    settings: PixelSettings,
    watcher: Watcher,
    *,
    device: torch.device,
    scratch: Path,
    pause: Callable[[], None],
) -> Seen:
    """From the cache, or through the backbone and into it. Equal contents are seen once."""
    decoded, recipe = dataset.decoded, dataset.recipe
    assert dataset.weights is not None
    make_deterministic(device)
    network = build(recipe.backbone, classes=2, image_size=recipe.image_size, seed=0)
    adopt(network, dataset.weights)
    views, width = 1 if recipe.flip is False else 2, network.fc.in_features
    feed = Feed(decoded.pixels, device, statistics=statistics_of(recipe.weights, recipe.backbone))
    statistics = feed.mean.tolist(), feed.std.tolist()
    hashes = [str(decoded.looks.sha256[row]) for row in decoded.rows.tolist()]
    contents = sorted(set(hashes))
    folder = pixels.cache_folder(settings, watcher)
    item_bytes = views * width * 2
    cache = None
    if folder is not None:
        how = digest([FEATURES_VERSION, statistics, str(Precision(device).dtype), device.type])
        maker = f"{recipe.backbone}-{recipe.weights_sha256[:16]}-{how[:8]}-{views}"
        cache = Cache.of_features(
            folder, size=recipe.image_size, max_pixels=settings.max_pixels, maker=maker, item_bytes=item_bytes
        )
    found = None if cache is None else cache.best(set(contents))
    if found is not None and set(contents) <= found.known().keys():
        return _seen(found, hashes, views, width, statistics, reused=True)
    building = scratch if cache is None else cache.build()
    building.mkdir(parents=True, exist_ok=True)
    entry = Entry(building, contents, [PENDING] * len(contents), FEATURES)
    make_store(entry.file, len(contents), item_bytes)
    if found is not None:
        entry = copy_known(found, entry, item_bytes)
    first = {sha: row for row, sha in reversed(list(enumerate(hashes)))}
    slots = np.array([i for i, status in enumerate(entry.status) if status == PENDING], dtype=np.int64)
    slots = slots[np.argsort([first[contents[i]] for i in slots.tolist()], kind="stable")]  # in the order of the rows
    rows = np.array([first[contents[i]] for i in slots.tolist()], dtype=np.int64)
    try:
        _fill(entry, slots, rows, network, feed, watcher, views=views, device=device, pause=pause)
    finally:
        if cache is not None:  # on a stop too: the next run goes on from what is done
            entry = cache.keep(entry)
    return _seen(entry, hashes, views, width, statistics, reused=False)


def _fill(
    entry: Entry,
    slots: Ints,
    rows: Ints,
    network: Network,
    feed: Feed,
    watcher: Watcher,
    *,
    views: int,
    device: torch.device,
    pause: Callable[[], None],
) -> None:
    """Run the backbone over the pictures that are still to be seen."""
    network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    store = _open(entry, views, network.fc.in_features, write=True)
    watcher.stage("features", len(rows))
    size = block_size(device)
    batches = list(torch.from_numpy(rows).split(size))
    seen = views_of(network, feed, batches, mirrored=views == 2, device=device)
    for places, values in zip(torch.from_numpy(slots).split(size), seen, strict=True):
        store[places.numpy()] = values.clamp(-65504, 65504).half().numpy()
        for place in places.tolist():
            entry.status[place] = "ok"
        watcher.advance(len(places))
        pause()
    watcher.finish()


def _open(entry: Entry, views: int, width: int, *, write: bool) -> Halves:
    kept: Halves = np.memmap(entry.file, dtype=np.float16, mode="r+" if write else "r")
    return kept.reshape(-1, views, width)


def _seen(entry: Entry, hashes: list[str], views: int, width: int, statistics: Statistics, *, reused: bool) -> Seen:
    """The rows' features, read into memory in the rows' order."""
    slot = entry.known()
    places = np.array([slot[sha] for sha in hashes], dtype=np.int64)
    features = torch.from_numpy(_open(entry, views, width, write=False)[places])
    return Seen(features, torch.from_numpy(places), statistics, reused)
