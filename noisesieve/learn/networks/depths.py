"""What every network is to the rest: features at one or more depths, and a linear classifier on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MIDDLE = "middle"  # the last layers at a sixteenth of the image's size


@dataclass(frozen=True)
class Depth:
    """Features of one depth of a network: its channels, averaged over the cells of a grid on the image."""

    name: str
    channels: int
    grid: int = 1

    @property
    def width(self) -> int:
        return self.channels * self.grid**2

    def pool(self, maps: Tensor) -> Tensor:
        """Average maps (B, C, H, W) over the cells of the grid, (B, C * grid * grid).

        It is a product of matrices: the gradient of torch's adaptive pooling is not deterministic on a GPU.
        """
        if self.grid == 1:
            return maps.mean(dim=(2, 3))
        high, wide = (_averages(size, self.grid).to(maps) for size in maps.shape[2:])
        return (high @ maps @ wide.T).flatten(1)


def _averages(size: int, cells: int) -> Tensor:
    """Return (cells, size): the weights of each cell's mean. Cells overlap if the size is not a multiple."""
    weights = torch.zeros((cells, size))
    for i in range(cells):
        begin, end = i * size // cells, -(-(i + 1) * size // cells)
        weights[i, begin:end] = 1 / (end - begin)
    return weights


class Network(nn.Module, ABC):
    """A feature extractor and a linear classifier `fc` on the features of the chosen depths."""

    fc: nn.Linear
    depths: tuple[Depth, ...]

    def set_head(self, depths: tuple[Depth, ...], classes: int) -> None:
        """Choose the depths and add a classifier on them."""
        self.depths = depths
        self.fc = nn.Linear(sum(depth.width for depth in depths), classes)

    @abstractmethod
    def maps(self, x: Tensor) -> dict[str, Tensor]:
        """Return the maps (B, C, H, W) of the chosen depths, by name."""

    def depth_features(self, x: Tensor) -> dict[str, Tensor]:
        """Return the features (B, D) of every chosen depth, by name."""
        maps = self.maps(x)
        return {depth.name: depth.pool(maps[depth.name]) for depth in self.depths}

    def features(self, x: Tensor) -> Tensor:
        """Return the features of all chosen depths, (B, D)."""
        return torch.cat(list(self.depth_features(x).values()), dim=1)

    def fuse(self) -> None:
        """Merge BatchNorm layers into convolutions, for inference only."""

    def forward(self, x: Tensor) -> Tensor:
        return float32_logits(self.fc, self.features(x))


def float32_logits(layer: nn.Linear, features: Tensor) -> Tensor:
    """Return logits in float32 even under autocast: at |z| = 32 bfloat16 has a spacing of 0.25."""
    with torch.autocast(features.device.type, enabled=False):
        logits: Tensor = layer(features.to(layer.weight.dtype))
    return logits
