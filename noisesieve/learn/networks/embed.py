"""Features of images, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor

from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.device import Precision
from noisesieve.learn.networks.depths import Network

CPU_BLOCK, GPU_BLOCK = 16, 64  # images in one forward pass; on a CPU, 64 spend half of the time on allocating memory


def block_size(device: torch.device) -> int:
    """Return the number of images in one forward pass."""
    return CPU_BLOCK if device.type == "cpu" else GPU_BLOCK


def embed(network: Network, loader: BatchLoader, rows: int, *, flip: bool) -> Tensor:
    """Return the features (N, D) of the first `rows` rows, averaged over both views if `flip`."""
    order = torch.arange(rows)
    parts = extract_depths(network, loader, order, mirrored=flip, chunk=block_size(loader.mean.device))
    return torch.cat([torch.cat([part[depth.name] for depth in network.depths], dim=2) for part in parts]).mean(dim=1)


def extract_depths(
    network: Network, loader: BatchLoader, rows: Tensor, *, mirrored: bool, chunk: int
) -> Iterator[dict[str, Tensor]]:
    """Yield the features of each chunk of rows: by depth (B, V, D), in float32 on the CPU; plain view, mirrored view.

    On a CPU several batches run at once, with one thread each, which is faster than one batch on all threads. A short
    batch is padded, so that the features of an image do not depend on the size of its batch.
    """
    network.eval()
    device = loader.mean.device
    precision, size = Precision(device), block_size(device)

    def extract(images: Tensor) -> dict[str, Tensor]:
        if device.type == "cpu":
            torch.set_num_threads(1)  # applies to the current thread only
        count, missing = len(images), size - len(images)
        if missing > 0:
            images = torch.cat((images, images[-1:].expand(missing, -1, -1, -1)))
        with torch.inference_mode(), precision.autocast():
            plain = loader.normalize(images)
            views = [network.depth_features(view) for view in ((plain, plain.flip(3)) if mirrored else (plain,))]
            return {name: torch.stack([view[name].float() for view in views], dim=1)[:count] for name in views[0]}

    batches = [part for block in rows.split(chunk) for part in block.split(size)]
    workers = torch.get_num_threads() if device.type == "cpu" else 1
    loaded = loader.batches(batches)
    done: list[dict[str, Tensor]] = []
    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(extract, images.clone()) for images in islice(loaded, 2 * workers)]
        for block in rows.split(chunk):
            for _ in range(-(-len(block) // size)):
                found = waiting.pop(0).result()
                waiting += [pool.submit(extract, images.clone()) for images in islice(loaded, 1)]
                done.append({name: part.cpu() for name, part in found.items()})  # the next is launched by now
            # clone: a normal, not an inference tensor
            yield {name: torch.cat([part[name] for part in done]).clone() for name in done[0]}
            done = []
