"""Strong augmentation of uint8 batches: torchvision's policies and a cutout, with a given generator."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.transforms import AutoAugmentPolicy, v2

from noisesieve.learn.augment import augment

GROUP = 8  # images that share one drawn policy: one policy per image would take longer than the training
SMALL = 64  # side in pixels up to which CIFAR's policy is used, which was learned on small images
_POLICIES = {
    "autoaugment": v2.AutoAugment(AutoAugmentPolicy.CIFAR10, fill=[128.0] * 3),
    "randaugment": v2.RandAugment(fill=[128.0] * 3),
}


def policy_for(image_size: int) -> str:
    """Return the name of the policy for images of this size."""
    return "autoaugment" if image_size <= SMALL else "randaugment"


def strong_augment(images: Tensor, generator: torch.Generator, *, flip: bool, policy: str) -> Tensor:
    """Return images that are shifted and mirrored, changed by the policy, and partly covered by a grey square."""
    images = augment(images, generator, flip=flip)
    seed = int(torch.randint(0, 2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):  # torchvision uses the global generator
        torch.manual_seed(seed)
        images = torch.cat([_POLICIES[policy](group) for group in images.split(GROUP)])
    return cutout(images, generator)


def cutout(images: Tensor, generator: torch.Generator) -> Tensor:
    """Cover a square of half the side in each image, at a random position, which may be partly outside."""
    batch, _, height, width = images.shape
    centre = torch.rand((2, batch, 1), generator=generator).to(images.device)
    rows = (torch.arange(height, device=images.device) - centre[0] * height).abs() < height / 4  # (B, H)
    columns = (torch.arange(width, device=images.device) - centre[1] * width).abs() < width / 4  # (B, W)
    hidden = rows[:, None, :, None] & columns[:, None, None, :]
    return torch.where(hidden, images.new_tensor(128), images)
