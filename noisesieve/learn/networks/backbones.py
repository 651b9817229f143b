"""The networks by name. A new network is a class and a line in BACKBONES."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisesieve.core.recipes import LAST
from noisesieve.learn.networks import lite

LITE = "lite0"
MIDDLE = "middle"  # the last layers at a sixteenth of the image's size
TORCHVISION = tuple(f"resnet{depth}" for depth in (18, 34, 50, 101, 152))
SMALL_IMAGE = 64  # up to this side torchvision's stem, with stride 4, would leave too few positions


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


class CifarBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class CifarResNet(Network):
    """The CIFAR family of the ResNet paper: 16, 32 and 64 channels, depth = 6n + 2."""

    def __init__(self, layers_deep: int, depths: tuple[Depth, ...], classes: int) -> None:
        super().__init__()
        blocks = (layers_deep - 2) // 6
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        layers: list[nn.Module] = []
        width = 16
        for stage, channels in enumerate((16, 32, 64)):
            for i in range(blocks):
                layers.append(CifarBlock(width, channels, stride=2 if stage > 0 and i == 0 else 1))
                width = channels
        self.layers = nn.Sequential(*layers)
        self.set_head(depths, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        return {LAST: self.layers(self.stem(x))}


class TorchvisionResNet(Network):
    """torchvision's ResNet. For small images its 7x7 stem and pooling are replaced by one 3x3 convolution."""

    def __init__(self, name: str, depths: tuple[Depth, ...], classes: int, image_size: int) -> None:
        super().__init__()
        import torchvision  # takes as long to import as torch itself

        body = getattr(torchvision.models, name)(weights=None)
        if image_size <= SMALL_IMAGE:
            body.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
            nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
            body.maxpool = nn.Identity()
        body.fc = nn.Identity()
        self.body = body
        self.set_head(depths, classes)

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        body = self.body
        x = body.layer2(body.layer1(body.maxpool(body.relu(body.bn1(body.conv1(x))))))
        middle = body.layer3(x)
        return {MIDDLE: middle, LAST: body.layer4(middle)}


class LiteNet(Network):
    """EfficientNet-lite0."""

    def __init__(self, depths: tuple[Depth, ...], classes: int) -> None:
        super().__init__()
        self.body = lite.lite_body()
        self.set_head(depths, classes)

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        last, middle = self.body.forward_intermediates(x, indices=[lite.MIDDLE_INDEX])
        return {MIDDLE: middle[0], LAST: last}

    def fuse(self) -> None:
        self.body = lite.fused(self.body)


def float32_logits(layer: nn.Linear, features: Tensor) -> Tensor:
    """Return logits in float32 even under autocast: at |z| = 32 bfloat16 has a spacing of 0.25."""
    with torch.autocast(features.device.type, enabled=False):
        logits: Tensor = layer(features.to(layer.weight.dtype))
    return logits


@dataclass(frozen=True)
class Backbone:
    """A kind of network: how it is built, and the depths it has, the last one first."""

    build: Callable[[tuple[Depth, ...], int, int], Network]  # of depths, classes, image size
    depths: tuple[Depth, ...]


def _cifar(layers_deep: int) -> Backbone:
    return Backbone(
        lambda depths, classes, image_size: CifarResNet(layers_deep, depths, classes), depths=(Depth(LAST, 64),)
    )


def _torchvision(name: str) -> Backbone:
    small = name in ("resnet18", "resnet34")
    return Backbone(
        lambda depths, classes, image_size: TorchvisionResNet(name, depths, classes, image_size),
        depths=(Depth(LAST, 512), Depth(MIDDLE, 256, 4)) if small else (Depth(LAST, 2048), Depth(MIDDLE, 1024, 2)),
    )


BACKBONES: dict[str, Backbone] = {
    **{f"resnet{layers_deep}": _cifar(layers_deep) for layers_deep in (8, 20, 32, 56)},
    **{name: _torchvision(name) for name in TORCHVISION},
    LITE: Backbone(
        lambda depths, classes, image_size: LiteNet(depths, classes), depths=(Depth(LAST, 1280), Depth(MIDDLE, 112, 4))
    ),
}


def depths_of(name: str, wanted: tuple[str, ...] = ()) -> tuple[Depth, ...]:
    """Return the depths of a backbone with these names, in this order; all of them if no name is given."""
    known = {depth.name: depth for depth in BACKBONES[name].depths}
    return tuple(known[depth] for depth in wanted or known)


def build(name: str, *, classes: int, image_size: int, seed: int, depths: tuple[str, ...] = (LAST,)) -> Network:
    """Return a new network whose weights depend on the seed alone. The global generator is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BACKBONES[name].build(depths_of(name, depths), classes, image_size)
