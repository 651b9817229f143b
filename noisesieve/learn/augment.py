"""Augmentation and normalization of uint8 batches, on the device.

Ours, not torchvision's: its transforms draw one shift for a whole batch, from a global generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Draws(NamedTuple):
    """How the images of a batch are shifted and mirrored: drawn on the CPU for all ranks, used on the device by one."""

    shift: Tensor  # (2, B) int64: rows and columns, from 0 to twice the reach
    mirrored: Tensor  # (B,) bool

    def columns(self, prefix: str = "") -> dict[str, Tensor]:
        """Return the numbers by name, one per image."""
        return {f"{prefix}y": self.shift[0], f"{prefix}x": self.shift[1], f"{prefix}mirrored": self.mirrored}

    @classmethod
    def of(cls, columns: Mapping[str, Tensor], prefix: str = "") -> Draws:
        """Undo `columns`, where these are on the device as floats."""
        shift = torch.stack((columns[f"{prefix}y"], columns[f"{prefix}x"])).long()
        return cls(shift, columns[f"{prefix}mirrored"] > 0)


def draw(batch: int, size: int, generator: torch.Generator, *, flip: bool) -> Draws:
    """Draw shifts of up to an eighth of the side, and with `flip` mirror each image with probability one half."""
    shift = torch.randint(0, 2 * reach(size) + 1, (2, batch), generator=generator)
    mirrored = torch.rand(batch, generator=generator) < 0.5 if flip else torch.zeros(batch, dtype=torch.bool)
    return Draws(shift, mirrored)


def reach(size: int) -> int:
    """Return by how many pixels an image is shifted, at most."""
    return max(1, size // 8)


def pad_crop(images: Tensor, shift: Tensor) -> Tensor:
    """Shift every image (B, C, H, W), with replicated edges."""
    batch, _, height, width = images.shape
    edge = reach(height)
    padded = functional.pad(images.float(), (edge, edge, edge, edge), mode="replicate").to(images.dtype)
    rows = shift[0][:, None] + torch.arange(height, device=images.device)  # (B, H)
    columns = shift[1][:, None] + torch.arange(width, device=images.device)  # (B, W)
    image = torch.arange(batch, device=images.device)[:, None, None]
    # Advanced indices around a slice come first in the result: (B, H, W, C).
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror the chosen images."""
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def draw_mix(batch: int, generator: torch.Generator, alpha: float) -> tuple[Tensor, float]:
    """Mixup: return the partner of each image, (B,), and the weight of the image itself.

    There is one weight per batch, from Beta(alpha, alpha), at least one half.
    """
    a, b = torch._standard_gamma(torch.tensor([alpha, alpha], dtype=torch.float64), generator=generator).tolist()
    share = max(a, b) / (a + b) if a + b > 0 else 1.0
    return torch.randperm(batch, generator=generator), share


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return uint8 images (B, C, H, W) as float32, normalized with a mean and a deviation per channel."""
    return (images.float() - mean[:, None, None]) / std[:, None, None]


def augment(images: Tensor, draws: Draws) -> Tensor:
    """Return images that are shifted, and mirrored where that was drawn."""
    return mirror(pad_crop(images, draws.shift), draws.mirrored)
