"""Before a scan: what it would do and cost, what no dataset could make right, and what makes a run this run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noisesieve import pixels, report, sources
from noisesieve.dataset import Dataset, sides
from noisesieve.errors import UsageError
from noisesieve.files import sha256_of
from noisesieve.learn.backbones import BACKBONES, LITE
from noisesieve.learn.cost import estimate
from noisesieve.learn.heads import FEATURE_BYTES
from noisesieve.learn.model import weight_bytes
from noisesieve.learn.plan import backbone_of, describe, plan, start
from noisesieve.learn.pretrained import IMAGENET, NONE, weights_file
from noisesieve.learn.world import World, choose_device, device_problem
from noisesieve.settings import ScanSettings
from noisesieve.watch import Nobody, Watcher


def dry_run(settings: ScanSettings, *, watcher: Watcher | None = None) -> dict[str, Any]:
    """What `scan` would choose here and what it would cost; reads headers of up to 2,000 images, trains nothing."""
    refuse_nonsense(settings)
    world = World.join(settings.device)
    index = sources.read(settings.source)
    sample = np.unique(np.linspace(0, len(index) - 1, min(len(index), 2000)).round().astype(np.int64))
    watcher = watcher or Nobody()
    for note in index.notes:
        watcher.note(note)
    looks = pixels.look(index, settings.pixels, watcher, rows=sample, pause=lambda: None)
    if lost := int((~looks.readable).sum()):
        watcher.warn(f"{lost:,} of {len(sample):,} images that were looked at cannot be read.")
    classes = len(set(index.labels))
    recipe = plan(
        settings.wishes, rows=len(index), classes=classes, longest_sides=sides(looks), device=world.device.type
    )
    cost = estimate(recipe, rows=len(index), classes=classes, device=world.device)
    return {
        "examples": len(index),
        "classes": classes,
        "device": world.device.type,
        "threads": torch.get_num_threads(),
        "plan": f"{settings.wishes.preset}: {describe(recipe, world)}",
        "recipe": asdict(recipe),
        "estimate": asdict(cost),
        "streamed": cost.cache_bytes > settings.pixels.cache_budget,
        "output": str(report.output_folder(settings.output, index, Nobody())),
    }


def refuse_nonsense(settings: ScanSettings) -> None:
    """Refuse before anything is read or written what no dataset could make right."""
    if problem := device_problem(settings.device):
        raise UsageError(problem, "Leave --device out, or choose cpu.")
    if settings.wishes.backbone not in (None, *BACKBONES):
        raise UsageError(f"--backbone {settings.wishes.backbone}: unknown.", f"There are: {', '.join(BACKBONES)}.")
    wishes, device = settings.wishes, choose_device(settings.device).type
    weights, _ = start(wishes, longest_sides=np.zeros(0, dtype=np.int64), device=device)
    weights_file(weights, backbone_of(wishes, weights, device))


def identity_of(settings: ScanSettings, fingerprint: str) -> dict[str, Any]:
    """What makes this run this run: settings, data, and the content of a file of weights."""
    identity = {**settings.identity(), "fingerprint": fingerprint}
    if (file := _own_weights(settings)) is not None:
        identity["weights_sha256"] = sha256_of(file)
    return identity


def location(settings: ScanSettings) -> dict[str, str]:
    """Where things lie, so that a later command finds them again."""
    places = settings.source.location()
    if (file := _own_weights(settings)) is not None:
        places["weights"] = file
    return {name: str(path.resolve()) for name, path in places.items()}


def _own_weights(settings: ScanSettings) -> Path | None:
    """The user's own file of weights, if that was asked for."""
    weights = settings.wishes.weights
    return None if weights in (None, NONE, IMAGENET, LITE) else Path(str(weights))


def bytes_needed(dataset: Dataset, settings: ScanSettings) -> int:
    """What the run folder will hold at its fullest: two checkpoints and a third being written, or the results."""
    rows, classes = len(dataset.codes), len(dataset.classes)
    if dataset.recipe.frozen:
        features = 0 if settings.pixels.cache else rows * FEATURE_BYTES  # else they lie in the cache
        return len(dataset.index) * (500 + classes * 4) + features + 2**20
    checkpoint = 6 * weight_bytes(dataset.recipe, classes) + rows * (classes * 16 + 9)  # parked weights, two opinions
    checkpoint += rows * 4 * max(0, dataset.recipe.epochs - dataset.recipe.sieve_start + 2)  # the course of the margins
    return 3 * checkpoint + len(dataset.index) * 500 + 2**20
