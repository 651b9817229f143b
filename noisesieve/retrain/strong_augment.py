"""Strong augmentation of uint8 batches: torchvision's policies and a cutout, with a given generator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from noisesieve.learn.augment import Draws, augment, draw

GROUP = 8  # images that share one drawn policy: one policy per image would take longer than the training
SMALL = 64  # side in pixels up to which CIFAR's policy is used, which was learned on small images


def policy_for(image_size: int) -> str:
    """Return the name of the policy for images of this size."""
    return "autoaugment" if image_size <= SMALL else "randaugment"


@functools.cache
def _policy(name: str) -> Callable[[Tensor], Tensor]:
    from torchvision.transforms import AutoAugmentPolicy, v2  # takes as long to import as torch itself

    fill = [128.0] * 3
    made: Callable[[Tensor], Tensor] = (
        v2.AutoAugment(AutoAugmentPolicy.CIFAR10, fill=fill) if name == "autoaugment" else v2.RandAugment(fill=fill)
    )
    return made


def draw_strong(batch: int, size: int, generator: torch.Generator, *, flip: bool, prefix: str) -> dict[str, Tensor]:
    """Draw the strong augmentation of a batch, but for its policy: numbers by name, one per image."""
    weak = draw(batch, size, generator, flip=flip).columns(prefix)
    centre = torch.rand((2, batch), generator=generator)
    return {**weak, f"{prefix}centre_y": centre[0], f"{prefix}centre_x": centre[1]}


def draw_policies(batch: int, own: slice, generator: torch.Generator) -> tuple[tuple[int, int], ...]:
    """Draw the seeds of the policies of a batch's groups; with each, how many of a rank's own images are in it."""
    group = torch.arange(batch) // GROUP
    seeds = torch.randint(0, 2**62, (-(-batch // GROUP),), generator=generator)
    numbers, counts = group[own].unique_consecutive(return_counts=True)
    return tuple(zip(seeds[numbers].tolist(), counts.tolist(), strict=True))


def strong_augment(
    images: Tensor, columns: Mapping[str, Tensor], policies: Sequence[tuple[int, int]], *, policy: str, prefix: str
) -> Tensor:
    """Return images that are shifted and mirrored, changed by the policy, and partly covered by a grey square.

    The images of one group get the same policy, on whichever rank they are. (torchvision sends the parameters of some
    operations to the device: the only copies of a step beside its images and its numbers.)
    """
    parts, start = [], 0
    images = augment(images, Draws.of(columns, prefix))
    with torch.random.fork_rng(devices=[]):  # torchvision uses the global generator
        for seed, count in policies:
            torch.manual_seed(seed)
            parts.append(_policy(policy)(images[start : start + count]))
            start += count
    centre = torch.stack((columns[f"{prefix}centre_y"], columns[f"{prefix}centre_x"])).float()
    return cutout(torch.cat(parts), centre)


def cutout(images: Tensor, centre: Tensor) -> Tensor:
    """Cover a square of half the side in each image, around a centre (2, B), which may be partly outside."""
    _, _, height, width = images.shape
    rows = (torch.arange(height, device=images.device) - centre[0, :, None] * height).abs() < height / 4  # (B, H)
    columns = (torch.arange(width, device=images.device) - centre[1, :, None] * width).abs() < width / 4  # (B, W)
    hidden = rows[:, None, :, None] & columns[:, None, None, :]
    return images.masked_fill(hidden, 128)
