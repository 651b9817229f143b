"""Augmentation and normalization of uint8 batches, on the device. Random numbers come from a given generator."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def pad_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift every image (B, C, H, W) by up to an eighth of its side, with replicated edges."""
    batch, _, height, width = images.shape
    reach = max(1, height // 8)
    padded = functional.pad(images.float(), (reach, reach, reach, reach), mode="replicate").to(images.dtype)
    shift = torch.randint(0, 2 * reach + 1, (2, batch), generator=generator).to(images.device)
    rows = shift[0][:, None] + torch.arange(height, device=images.device)  # (B, H)
    columns = shift[1][:, None] + torch.arange(width, device=images.device)  # (B, W)
    image = torch.arange(batch, device=images.device)[:, None, None]
    # Advanced indices around a slice come first in the result: (B, H, W, C).
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image with probability one half."""
    chosen = torch.rand(len(images), generator=generator).to(images.device) < 0.5
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


def mix(images: Tensor, generator: torch.Generator, alpha: float) -> tuple[Tensor, Tensor, float]:
    """Mixup: return the mixed images, the partner of each image, and the weight of the image itself.

    There is one weight per batch, from Beta(alpha, alpha), at least one half.
    """
    a, b = torch._standard_gamma(torch.tensor([alpha, alpha], dtype=torch.float64), generator=generator).tolist()
    share = max(a, b) / (a + b) if a + b > 0 else 1.0
    partner = torch.randperm(len(images), generator=generator)
    return share * images + (1 - share) * images[partner.to(images.device)], partner, share


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return uint8 images (B, C, H, W) as float32, normalized with a mean and a deviation per channel."""
    return (images.float() - mean[:, None, None]) / std[:, None, None]


def augment(images: Tensor, generator: torch.Generator, *, flip: bool) -> Tensor:
    """Return shifted images, mirrored with probability one half if `flip`."""
    images = pad_crop(images, generator)
    return random_flip(images, generator) if flip else images
