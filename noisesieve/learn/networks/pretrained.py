"""Pretrained weights: where the files are, whether they fit a network, and how images must be normalized."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.files import sha256_of_weights
from noisesieve.core.untrusted import require_regular
from noisesieve.learn.networks import timm_net
from noisesieve.learn.networks.backbones import LITE, TORCHVISION, build
from noisesieve.learn.networks.lite import lite_weights, with_timm_names
from noisesieve.learn.recipes import HeadRecipe, NetworkChoice, NetworkRecipe

NONE, IMAGENET = "none", "imagenet"
LAST_LAYER: tuple[str, ...] = ("fc.", "_fc.", "classifier.")  # the last layer, which is always trained from scratch
SHOWN = 3  # tensors that an error names
HASH_DIGITS = 8  # of the hash in the file names of torchvision's weights

Statistics = tuple[list[float], list[float]]
R = TypeVar("R", bound=NetworkChoice)
_STATISTICS: dict[str, Statistics] = {
    LITE: ([127.0] * 3, [128.0] * 3),
    IMAGENET: ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375]),
}


def weights_file(weights: str, backbone: str, *, download: bool = True) -> Path | None:
    """Return the file for `--weights` and a backbone; None for `none`.

    It is downloaded if necessary, unless that is not wanted: then it is refused.
    """
    if weights == NONE:
        return None
    if weights == LITE:
        return _lite_file(backbone)
    if weights == IMAGENET:
        return _imagenet_file(backbone, download=download)
    if timm_net.is_timm(weights):
        return timm_net.hub_file(weights, download=download)
    if not Path(weights).is_file():
        raise InputError(
            f"--weights {weights}: no such file.", "Name a file, timm/NAME, or one of none, imagenet, lite0."
        )
    return Path(weights)


def _lite_file(backbone: str) -> Path:
    if backbone != LITE:
        raise UsageError(f"--weights lite0: not for {backbone}.", "Leave --backbone out, or choose --weights imagenet.")
    return lite_weights()


def _imagenet_file(backbone: str, *, download: bool) -> Path:
    """Return torchvision's weights in the cache of torch.hub."""
    import torchvision  # takes as long to import as torch itself

    try:
        url: str = torchvision.models.get_model_weights(backbone).DEFAULT.url
    except ValueError as error:
        raise UsageError(
            f"--weights imagenet: torchvision has none for {backbone}.", "Choose resnet18, 34, 50, 101 or 152."
        ) from error
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not file.exists() and not download:
        raise InputError(f"--weights imagenet: {file.name} is not on this machine.", "--weights imagenet downloads it.")
    if not file.exists():
        mark = file.stem.rpartition("-")[2]
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(file), mark if len(mark) >= HASH_DIGITS else None, progress=False)
        except (OSError, RuntimeError, HTTPException) as error:  # no network, no space, or a wrong hash
            raise InputError(
                f"--weights imagenet: {url} cannot be downloaded ({error}).",
                f"Copy it to {file}, or work offline with --weights lite0.",
            ) from error
    return file


def with_weights_hash(recipe: R, file: Path | None) -> R:
    """Return the recipe with the hash of its weights file: a run with other weights is another run."""
    return recipe if file is None else replace(recipe, weights_sha256=sha256_of_weights(file))


def statistics_of(weights: str, backbone: str) -> Statistics | None:
    """Return mean and deviation per channel that the weights were trained with; None: use the dataset's own."""
    if weights == NONE:
        return None
    if backbone == LITE:
        return _STATISTICS[LITE]
    if timm_net.is_timm(backbone):
        facts = timm_net.facts_of(backbone)
        return facts.mean, facts.std
    return _STATISTICS[IMAGENET] if backbone in TORCHVISION else None


def load_backbone(network: nn.Module, file: Path) -> None:
    """Load all layers but the last from a file. An error names the tensors that do not fit."""
    known, last = _tensors(file), LAST_LAYER
    if isinstance(network, timm_net.TimmNet):
        known, last = timm_net.fit_tensors(network.body, known), (*last, *timm_net.classifier_names(network.body))
    fitting, wrong = {}, []
    spare = {name for name in known if not name.startswith(last) and not name.endswith("num_batches_tracked")}
    for name, value in network.state_dict().items():
        if name.startswith("fc."):
            continue
        key = name if name in known else name.removeprefix("body.")
        spare.discard(key)
        given = known.get(key)
        if given is None:
            if not name.endswith("num_batches_tracked"):  # older files have none
                wrong.append(f"{name} is missing")
        elif given.shape != value.shape:
            wrong.append(f"{name} is {_shape(given)}, not {_shape(value)}")
        elif given.is_meta or given.layout != torch.strided or given.is_floating_point() != value.is_floating_point():
            wrong.append(f"{name} is not a plain tensor of numbers")
        elif not torch.isfinite(given).all():
            wrong.append(f"{name} contains numbers that are not finite")
        else:
            fitting[name] = given
    wrong += [f"{name} is not in the network" for name in sorted(spare)]  # part of a larger network would fit too
    if wrong:
        more = f" and {len(wrong) - SHOWN:,} more" if len(wrong) > SHOWN else ""
        raise InputError(
            f"{file}: does not fit the network: {', '.join(wrong[:SHOWN])}{more}.",
            "Choose the --backbone, and an --image-size, that it was trained for.",
        )
    network.load_state_dict(fitting, strict=False)


def require_fitting(file: Path, recipe: NetworkRecipe | HeadRecipe) -> None:
    """Refuse a file whose weights cannot be read, or do not fit the recipe's backbone."""
    load_backbone(build(recipe.backbone, classes=2, image_size=recipe.image_size, seed=0), file)


def require_readable(file: Path) -> None:
    """Refuse a file whose weights cannot be read."""
    _tensors(file)


def _tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of a torch file that loads without running code."""
    try:
        require_regular(file)
        if file.suffix == ".safetensors":
            loaded = load_file(file)
        else:
            _refuse_packed(file)
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a file of another kind can raise anything
        kind = "a safetensors file" if file.suffix == ".safetensors" else "a torch file of plain tensors"
        raise InputError(f"{file}: no weights that can be read: not {kind}.", "Save a plain state_dict.") from error
    for wrapper in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    tensors = {str(name).removeprefix("module."): value for name, value in _items(loaded) if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(f"{file}: contains no tensors.", "Save a plain state_dict.")
    return with_timm_names(tensors)


def _refuse_packed(file: Path) -> None:
    """Refuse a torch file that unpacks to far more than its size: torch itself writes its tensors unpacked."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as parts:
            if sum(part.file_size for part in parts.infolist()) > 2 * file.stat().st_size + 2**20:
                raise ValueError("a packed file")


def _items(loaded: object) -> list[tuple[object, object]]:
    return list(loaded.items()) if isinstance(loaded, dict) else []


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"
