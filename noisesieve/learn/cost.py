"""Estimate the cost of a run before it starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from noisesieve.learn.device import Precision, kept_memory
from noisesieve.learn.distributed import Processes
from noisesieve.learn.losses import training_loss
from noisesieve.learn.memory_plan import memory_parts
from noisesieve.learn.networks.backbones import build, depths_of
from noisesieve.learn.networks.depths import Network
from noisesieve.learn.recipes import HeadRecipe, NetworkChoice, Recipe
from noisesieve.learn.second_opinion import SNAPSHOT_EPOCHS


@dataclass(frozen=True)
class CostEstimate:
    """Upper bounds of the cost of a run on this machine."""

    seconds: float
    memory_bytes: int
    cache_bytes: int
    images_per_second: float


def estimate(
    recipe: Recipe, *, rows: int, classes: int, processes: Processes, cached_features: float = 0.0
) -> CostEstimate:
    """Time a few training steps on blank images, in the precision of the run, and multiply by the number of steps.

    `cached_features` is the share of the rows whose features need not be computed.
    """
    device = processes.device
    batch = min(recipe.batch_size, 64 if recipe.backbone in ("resnet8", "resnet20") else 8)
    model = _network(recipe, classes)
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.zeros((batch, 3, recipe.image_size, recipe.image_size), device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    views = 2 if recipe.flip is not False else 1
    weights = sum(p.numel() for p in model.parameters()) * 4
    precision = Precision(device)
    if isinstance(recipe, HeadRecipe):  # one forward pass per view; the heads take seconds
        with kept_memory(device):
            rate = batch / _fastest(lambda: _forward(model, images, precision))
        count = rows * views * (1 - cached_features)
    else:
        labels = torch.zeros(batch, dtype=torch.int64, device=device)
        rate = batch / _fastest(lambda: _step(model, images, labels, precision)) * processes.size
        scored = recipe.epochs - recipe.sieve_start + 2 + min(SNAPSHOT_EPOCHS, recipe.settle_epochs)
        # A forward pass costs about a third of a step.
        count = recipe.epochs * recipe.images_per_epoch(rows) + scored * rows * views / 3
    parts = memory_parts(recipe, rows=rows, classes=classes, weight_bytes=weights, on_cpu=device.type == "cpu")
    return CostEstimate(
        seconds=count / rate,
        memory_bytes=sum(parts.values()),
        cache_bytes=rows * recipe.image_size**2 * 3,
        images_per_second=rate,
    )


def _network(recipe: Recipe, classes: int) -> Network:
    """Return the network that the recipe runs: for features with all of its depths, and fused."""
    head = isinstance(recipe, HeadRecipe)
    depths = tuple(depth.name for depth in depths_of(recipe.backbone)) if head else recipe.depths
    model = build(recipe.backbone, classes=classes, image_size=recipe.image_size, seed=0, depths=depths)
    if head:
        model.fuse()
    return model


def _forward(model: Network, images: torch.Tensor, precision: Precision) -> None:
    with torch.inference_mode(), precision.autocast():
        float(model.eval()(images).sum())


def _step(model: Network, images: torch.Tensor, labels: torch.Tensor, precision: Precision) -> None:
    with precision.autocast():
        logits = model(images)
    prior = torch.full((logits.shape[1],), 1 / logits.shape[1], device=logits.device)
    loss = training_loss(logits, labels, prior, 0.0).mean()
    loss.backward()
    float(loss.detach())


def _fastest(work: Callable[[], None]) -> float:
    """Return the seconds of the fastest of three runs, after one run to warm up."""
    seconds = []
    for _ in range(4):
        start = time.monotonic()
        work()
        seconds.append(time.monotonic() - start)
    return min(seconds[1:])


def weight_bytes(recipe: NetworkChoice, classes: int) -> int:
    """Return the size of the network's weights, without allocating them."""
    with torch.device("meta"):
        model = build(recipe.backbone, classes=classes, image_size=recipe.image_size, seed=0, depths=recipe.depths)
    return sum(value.numel() * value.element_size() for value in model.state_dict().values())
