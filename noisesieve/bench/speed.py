"""Measure an epoch of training against a bare torch loop: the same network, images, batches and threads, in turns.

    python -m noisesieve.bench.speed -o speed.json

The bare loop shifts and mirrors images, normalizes them, and takes an SGD step on the cross-entropy: no sieve, no
regularizer, no averaged weights, no check for infinite values. A ratio of 1 is as fast as that. The fastest of several
turns counts, since these machines are busy.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from noisesieve.core.records import Bytes, Ints
from noisesieve.learn.augment import augment, draw, normalize
from noisesieve.learn.device import choose_device
from noisesieve.learn.distributed import Processes, TrainingSession
from noisesieve.learn.loop import Loop
from noisesieve.learn.networks.backbones import build
from noisesieve.learn.recipes import NetworkRecipe
from noisesieve.learn.training_data import TrainingData, make_generator, shuffled_batches

ROWS, BATCH, TURNS = 4096, 128, 5
SIZES = (16, 32)


@dataclass(frozen=True)
class PixelsInMemory:
    """Images in memory."""

    images: Bytes  # (N, S, S, 3)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def size(self) -> int:
        """Side of the images in pixels."""
        return int(self.images.shape[1])

    def batches(self, order: Sequence[Ints]) -> Iterator[Bytes]:
        """Yield the images of each array of rows."""
        for rows in order:
            yield self.images[rows]


def seconds_of_ours(data: TrainingData, recipe: NetworkRecipe, device: torch.device) -> Iterator[float]:
    """Yield the seconds of each epoch of our loop."""
    loop = Loop(data, recipe, TrainingSession(processes=Processes(device=device)), checkpoints=None)
    loop.state.warmup, loop.state.flip = recipe.warmup_epochs, True
    while True:
        loop.state.epoch, loop.state.step, loop.state.epoch_facts = recipe.epochs, 0, {}
        start = time.perf_counter()
        loop.train_epoch()
        yield time.perf_counter() - start


def seconds_of_bare(data: TrainingData, recipe: NetworkRecipe, device: torch.device) -> Iterator[float]:
    """Yield the seconds of each epoch of a bare loop."""
    model = build(recipe.backbone, classes=data.classes, image_size=recipe.image_size, seed=0, depths=recipe.depths).to(
        device, memory_format=torch.channels_last
    )  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    mean, std = torch.full((3,), 120.0, device=device), torch.full((3,), 60.0, device=device)
    assert isinstance(data.pixels, PixelsInMemory)
    images = torch.from_numpy(data.pixels.images).permute(0, 3, 1, 2)
    none = torch.zeros(0, dtype=torch.int64)
    while True:
        start = time.perf_counter()
        model.train()
        generator = make_generator(0, 1)
        for rows in shuffled_batches(len(data), none, size=recipe.batch_size, generator=generator):
            draws = draw(len(rows), recipe.image_size, generator, flip=True)
            views = normalize(augment(images[rows].to(device), draws), mean, std)
            loss = cross_entropy(model(views.contiguous(memory_format=torch.channels_last)), data.labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield time.perf_counter() - start


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--backbone", default="resnet8")
    options = parser.parse_args()
    device, found = choose_device("auto"), {}
    for size in SIZES:
        rng = np.random.default_rng(0)
        pixels = PixelsInMemory(rng.integers(0, 255, (ROWS, size, size, 3), dtype=np.uint8))
        labels = torch.from_numpy(rng.integers(0, 10, ROWS))
        data = TrainingData(pixels, labels, 10, torch.zeros(ROWS, dtype=torch.bool))
        recipe = NetworkRecipe(
            backbone=options.backbone,
            image_size=size,
            epochs=9,
            warmup_epochs=3,
            ramp_epochs=2,
            sieve_start=6,
            batch_size=BATCH,
            lr=0.05,
            flip=True,
        )
        ours, bare = seconds_of_ours(data, recipe, device), seconds_of_bare(data, recipe, device)
        next(ours), next(bare)  # what is made once
        turns = [(next(ours), next(bare)) for _ in range(TURNS)]
        fastest = [min(turn) for turn in zip(*turns, strict=True)]
        found[size] = {"ours": fastest[0], "bare": fastest[1], "ratio": fastest[1] / fastest[0]}
        print(f"{options.backbone} at {size} px: {ROWS / fastest[0]:,.0f} images/s, {found[size]['ratio']:.2f} of bare")
    options.output.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
