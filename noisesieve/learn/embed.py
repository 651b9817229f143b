"""What the last layer sees of every row: the network's own idea of which pictures are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor

from noisesieve.learn.backbones import Network
from noisesieve.learn.feed import Feed, Precision

CPU_BLOCK, GPU_BLOCK = 8, 64  # pictures at a time: on a CPU a few stay in reach, 64 spend half the time on fresh memory


def block_size(device: torch.device) -> int:
    """Pictures that go through a network together."""
    return CPU_BLOCK if device.type == "cpu" else GPU_BLOCK


def embed(network: Network, feed: Feed, rows: int, *, flip: bool) -> Tensor:
    """Features (N, D), both views averaged where flips are allowed."""
    device = feed.mean.device
    batches = list(torch.arange(rows).split(block_size(device)))
    found = list(views_of(network, feed, batches, mirrored=flip, device=device))
    return torch.cat(found).mean(dim=1)


def views_of(
    network: Network, feed: Feed, batches: Sequence[Tensor], *, mirrored: bool, device: torch.device
) -> Iterator[Tensor]:
    """For each batch of rows its features (B, V, D) in float32 on the CPU: the plain view, then the mirrored one.

    On a CPU several batches run at a time, one thread each: faster than one batch on all threads. A short batch is
    filled up, so that a picture's features do not depend on its company.
    """
    network.eval()
    precision = Precision(device)

    def see(images: Tensor) -> Tensor:
        if device.type == "cpu":
            torch.set_num_threads(1)  # of this thread alone
        count, missing = len(images), block_size(device) - len(images)
        if missing > 0:
            images = torch.cat((images, images[-1:].expand(missing, -1, -1, -1)))
        with torch.inference_mode(), precision.autocast():
            plain = feed.normalize(images)
            views = (plain, plain.flip(3)) if mirrored else (plain,)
            return torch.stack([network.features(view).float() for view in views], dim=1)[:count].cpu()

    workers = torch.get_num_threads() if device.type == "cpu" else 1
    pictures = feed.batches(batches)
    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(see, images.clone()) for images in islice(pictures, 2 * workers)]
        while waiting:
            yield waiting.pop(0).result().clone()  # no inference tensor leaves this room
            waiting += [pool.submit(see, images.clone()) for images in islice(pictures, 1)]
