"""Augmentation and normalisation of whole uint8 batches, on the device, with a generator that is passed in."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def pad_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift every picture (B, C, H, W) by up to an eighth of its side, edges repeated."""
    batch, _, height, width = images.shape
    reach = max(1, height // 8)
    padded = functional.pad(images.float(), (reach, reach, reach, reach), mode="replicate").to(images.dtype)
    shift = torch.randint(0, 2 * reach + 1, (2, batch), generator=generator).to(images.device)
    rows = shift[0][:, None] + torch.arange(height, device=images.device)  # (B, H)
    columns = shift[1][:, None] + torch.arange(width, device=images.device)  # (B, W)
    picture = torch.arange(batch, device=images.device)[:, None, None]
    # Advanced indices around the channel slice come out first: (B, H, W, C).
    return padded[picture, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the pictures."""
    chosen = torch.rand(len(images), generator=generator).to(images.device) < 0.5
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


def mix(images: Tensor, dice: torch.Generator, alpha: float) -> tuple[Tensor, Tensor, float]:
    """Every picture with a partner's laid over it: the mixture, each one's partner, and the share of its own.

    One share a batch, from Beta(alpha, alpha), the picture's own at least half.
    """
    a, b = torch._standard_gamma(torch.tensor([alpha, alpha], dtype=torch.float64), generator=dice).tolist()
    share = max(a, b) / (a + b) if a + b > 0 else 1.0
    partner = torch.randperm(len(images), generator=dice)
    return share * images + (1 - share) * images[partner.to(images.device)], partner, share


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """uint8 (B, C, H, W) → float32 with the dataset's mean and deviation a channel."""
    return (images.float() - mean[:, None, None]) / std[:, None, None]


def augment(images: Tensor, dice: torch.Generator, *, flip: bool) -> Tensor:
    """Shifted, and mirrored where that is harmless."""
    images = pad_crop(images, dice)
    return random_flip(images, dice) if flip else images
