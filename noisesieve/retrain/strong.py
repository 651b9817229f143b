"""Strong views: torchvision's policies and a cutout, on whole uint8 batches, with a generator that is passed in."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.transforms import AutoAugmentPolicy, v2

from noisesieve.learn.augment import augment

GROUP = 8  # pictures that share a drawn policy: one each would make the drawing cost more than the training
SMALL = 64  # pixels up to which CIFAR's policy is used; it was learnt for such pictures
_POLICIES = {
    "autoaugment": v2.AutoAugment(AutoAugmentPolicy.CIFAR10, fill=[128.0] * 3),
    "randaugment": v2.RandAugment(fill=[128.0] * 3),
}


def policy_for(image_size: int) -> str:
    """The policy that suits pictures of this size."""
    return "autoaugment" if image_size <= SMALL else "randaugment"


def strong(images: Tensor, dice: torch.Generator, *, flip: bool, policy: str) -> Tensor:
    """Shifted and mirrored like a plain view, then the policy, then a square of half the side greyed out."""
    images = augment(images, dice, flip=flip)
    seed = int(torch.randint(0, 2**62, (), generator=dice))
    with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
        torch.manual_seed(seed)
        images = torch.cat([_POLICIES[policy](group) for group in images.split(GROUP)])
    return cutout(images, dice)


def cutout(images: Tensor, dice: torch.Generator) -> Tensor:
    """Grey squares, each at its own place and partly outside where that lies near an edge."""
    batch, _, height, width = images.shape
    centre = torch.rand((2, batch, 1), generator=dice).to(images.device)
    rows = (torch.arange(height, device=images.device) - centre[0] * height).abs() < height / 4  # (B, H)
    columns = (torch.arange(width, device=images.device) - centre[1] * width).abs() < width / 4  # (B, W)
    hidden = rows[:, None, :, None] & columns[:, None, None, :]
    return torch.where(hidden, images.new_tensor(128), images)
