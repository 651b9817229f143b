"""Features of images, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor

from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.device import Precision
from noisesieve.learn.networks.backbones import Network

CPU_BLOCK, GPU_BLOCK = 8, 64  # images at a time; on a CPU, 64 spend half of the time on allocating memory


def block_size(device: torch.device) -> int:
    """Return the number of images in one forward pass."""
    return CPU_BLOCK if device.type == "cpu" else GPU_BLOCK


def embed(network: Network, loader: BatchLoader, rows: int, *, flip: bool) -> Tensor:
    """Return the features (N, D) of the first `rows` rows, averaged over both views if `flip`."""
    device = loader.mean.device
    batches = list(torch.arange(rows).split(block_size(device)))
    parts = list(extract_features(network, loader, batches, mirrored=flip, device=device))
    return torch.cat(parts).mean(dim=1)


def extract_features(
    network: Network, loader: BatchLoader, batches: Sequence[Tensor], *, mirrored: bool, device: torch.device
) -> Iterator[Tensor]:
    """Yield the features (B, V, D) of each batch of rows, in float32 on the CPU: plain view, then mirrored view.

    On a CPU several batches run at once, with one thread each, which is faster than one batch on all threads. A short
    batch is padded, so that the features of an image do not depend on the size of its batch.
    """
    network.eval()
    precision = Precision(device)

    def extract(images: Tensor) -> Tensor:
        if device.type == "cpu":
            torch.set_num_threads(1)  # applies to the current thread only
        count, missing = len(images), block_size(device) - len(images)
        if missing > 0:
            images = torch.cat((images, images[-1:].expand(missing, -1, -1, -1)))
        with torch.inference_mode(), precision.autocast():
            plain = loader.normalize(images)
            views = (plain, plain.flip(3)) if mirrored else (plain,)
            return torch.stack([network.features(view).float() for view in views], dim=1)[:count].cpu()

    workers = torch.get_num_threads() if device.type == "cpu" else 1
    loaded = loader.batches(batches)
    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(extract, images.clone()) for images in islice(loaded, 2 * workers)]
        while waiting:
            yield waiting.pop(0).result().clone()  # clone: a normal, not an inference tensor
            waiting += [pool.submit(extract, images.clone()) for images in islice(loaded, 1)]
