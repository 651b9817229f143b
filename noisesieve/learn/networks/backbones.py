"""The networks by name. A new network is a class and a line in BACKBONES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisesieve.learn.networks import lite, timm_net
from noisesieve.learn.networks.depths import MIDDLE, Depth, Network
from noisesieve.learn.recipes import LAST

LITE = "lite0"
TORCHVISION = tuple(f"resnet{depth}" for depth in (18, 34, 50, 101, 152))
SMALL_IMAGE = 64  # up to this side torchvision's stem, with stride 4, would leave too few positions


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


def backbone(name: str) -> Backbone:
    """Return a kind of network: one of BACKBONES, or any of timm."""
    if not timm_net.is_timm(name):
        return BACKBONES[name]
    return Backbone(
        lambda depths, classes, image_size: timm_net.TimmNet(name, depths, classes, image_size),
        depths=timm_net.facts_of(name).depths,
    )


def depths_of(name: str, wanted: tuple[str, ...] = ()) -> tuple[Depth, ...]:
    """Return the depths of a backbone with these names, in this order; all of them if no name is given."""
    known = {depth.name: depth for depth in backbone(name).depths}
    return tuple(known[depth] for depth in wanted or known)


def build(name: str, *, classes: int, image_size: int, seed: int, depths: tuple[str, ...] = (LAST,)) -> Network:
    """Return a new network whose weights depend on the seed alone. The global generator is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return backbone(name).build(depths_of(name, depths), classes, image_size)
