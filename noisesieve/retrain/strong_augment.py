"""Strong augmentation of uint8 batches: torchvision's policies and a cutout, with a given generator."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from noisesieve.learn.augment import augment

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


def strong_augment(images: Tensor, generator: torch.Generator, *, flip: bool, policy: str) -> Tensor:
    """Return images that are shifted and mirrored, changed by the policy, and partly covered by a grey square."""
    images = augment(images, generator, flip=flip)
    seed = int(torch.randint(0, 2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):  # torchvision uses the global generator
        torch.manual_seed(seed)
        images = torch.cat([_policy(policy)(group) for group in images.split(GROUP)])
    return cutout(images, generator)


def cutout(images: Tensor, generator: torch.Generator) -> Tensor:
    """Cover a square of half the side in each image, at a random position, which may be partly outside."""
    batch, _, height, width = images.shape
    centre = torch.rand((2, batch, 1), generator=generator).to(images.device)
    rows = (torch.arange(height, device=images.device) - centre[0] * height).abs() < height / 4  # (B, H)
    columns = (torch.arange(width, device=images.device) - centre[1] * width).abs() < width / 4  # (B, W)
    hidden = rows[:, None, :, None] & columns[:, None, None, :]
    return torch.where(hidden, images.new_tensor(128), images)
