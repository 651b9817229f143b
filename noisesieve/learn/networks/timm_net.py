"""Any network of timm, by name: `timm/vit_small_patch14_dinov2`. Its depths, its input, and its weights on the hub."""

from __future__ import annotations

import functools
import importlib
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from noisesieve.core.errors import InputError, UsageError
from noisesieve.learn.networks.depths import MIDDLE, Depth, Network
from noisesieve.learn.recipes import LAST

PREFIX = "timm/"
WIDEST = 4096  # features of the middle depth, at most
GRIDS = (4, 2, 1)
TOKEN_DEPTH = 0.75  # of a transformer's blocks, whose maps all have the same size, the middle is this far in


@dataclass(frozen=True)
class TimmFacts:
    """What is known of a network without its weights."""

    name: str
    depths: tuple[Depth, ...]
    middle: int | None  # number of the middle depth among timm's intermediate features; None: the last layer alone
    hook: str | None  # the module to listen to, for a network that cannot return intermediate features itself
    size: int  # of the images it was trained on
    patch: int  # the size must be a multiple of this
    takes_size: bool  # it is built for a size, which can be chosen
    fixed: bool  # it works with the size it was trained on, and no other
    count: int  # of its intermediate features
    mean: list[float]
    std: list[float]


def is_timm(name: str | None) -> bool:
    """Return True for a name such as timm/resnet18."""
    return name is not None and name.startswith(PREFIX)


def require_known(name: str, option: str) -> None:
    """Refuse a name that timm does not know, and name similar ones."""
    import timm

    plain = name.removeprefix(PREFIX)
    if not timm.is_model(plain):
        close = timm.list_models(f"*{plain.partition('.')[0][:12]}*")[:3]
        hint = (
            f"Did you mean {' or '.join(PREFIX + similar for similar in close)}?"
            if close
            else "See timm.list_models()."
        )
        raise UsageError(f"{option} {name}: timm has no such network.", hint)


@functools.lru_cache(maxsize=8)
def facts_of(name: str) -> TimmFacts:
    """Return what is known of a network. It is built without memory for its weights."""
    import timm

    require_known(name, "--backbone")
    plain = name.removeprefix(PREFIX)
    with torch.device("meta"):
        body: Any = timm.create_model(plain, pretrained=False, num_classes=0)
        takes_size = hasattr(body, "patch_embed") and _takes_size(plain, int(body.pretrained_cfg["input_size"][-1]))
    config = timm.data.resolve_model_data_config(body)
    last = Depth(LAST, int(getattr(body, "head_hidden_size", None) or body.num_features))
    middle = _middle(body)
    hook = None
    depths: tuple[Depth, ...] = (last,)
    if middle is not None:
        info = body.feature_info[middle]
        channels = int(info["num_chs"])
        grid = next(grid for grid in GRIDS if channels * grid**2 <= WIDEST or grid == 1)
        depths = (last, Depth(MIDDLE, channels, grid))
        hook = None if hasattr(body, "forward_intermediates") else str(info["module"])
    return TimmFacts(
        name=name,
        depths=depths,
        middle=middle,
        hook=hook,
        size=int(config["input_size"][-1]),
        patch=_patch(body),
        takes_size=takes_size,
        fixed=bool(body.pretrained_cfg.get("fixed_input_size")) and not takes_size,
        count=len(getattr(body, "feature_info", None) or []),
        mean=[255 * float(value) for value in config["mean"]],
        std=[255 * float(value) for value in config["std"]],
    )


def _takes_size(plain: str, size: int) -> bool:
    import timm

    try:
        timm.create_model(plain, pretrained=False, num_classes=0, img_size=size)
    except TypeError:
        return False
    return True


def _middle(body: Any) -> int | None:
    """Return the number of the middle depth: the last one before the final reduction, or three quarters in."""
    info = list(getattr(body, "feature_info", None) or [])
    reductions = [part.get("reduction", 0) for part in info]
    if len(info) < 2 or not all("num_chs" in part for part in info):
        return None
    if len(set(reductions)) == 1:
        return max(0, round(TOKEN_DEPTH * len(info)) - 1)
    return max((i for i, reduction in enumerate(reductions) if reduction < reductions[-1]), default=None)


def _patch(body: Any) -> int:
    embed = getattr(body, "patch_embed", None)
    size = getattr(embed, "patch_size", None)
    patch = int(size[0] if isinstance(size, tuple) else size) if size is not None else 32
    reductions = [part.get("reduction", 0) for part in getattr(body, "feature_info", None) or []]
    return max(patch, *reductions) if len(set(reductions)) > 1 else patch


def fitting_size(name: str, wanted: int) -> int:
    """Return the size nearest to the wanted one that the network works with; the one it was trained on if none does."""
    facts = facts_of(name)
    size = max(facts.patch, round(wanted / facts.patch) * facts.patch) if facts.takes_size else wanted
    return facts.size if facts.fixed or not _works(name, size) else size


@functools.lru_cache(maxsize=64)
def _works(name: str, size: int) -> bool:
    """Return True if the network can be built for this size and run, which is tried without memory for its weights."""
    depths = facts_of(name).depths
    try:
        with torch.device("meta"), torch.inference_mode():
            TimmNet(name, depths, 2, size).eval().depth_features(torch.zeros((1, 3, size, size)))
    except (UsageError, RuntimeError, AssertionError, ValueError):
        return False
    return True


class _Seen(threading.local):
    """What a hook has seen: several threads extract features at once. A copy of a network starts with nothing."""

    maps: Tensor

    def __deepcopy__(self, memo: dict[int, object]) -> _Seen:
        return _Seen()


class TimmNet(Network):
    """A network of timm."""

    def __init__(self, name: str, depths: tuple[Depth, ...], classes: int, image_size: int) -> None:
        super().__init__()
        import timm

        self._facts = facts_of(name)
        options = {"img_size": image_size} if self._facts.takes_size else {}
        try:
            self.body: Any = timm.create_model(name.removeprefix(PREFIX), pretrained=False, num_classes=0, **options)
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            raise UsageError(
                f"{name} cannot be built for {image_size} px: {error}.", f"Choose --image-size {self._facts.size}."
            ) from error
        self.set_head(depths, classes)
        self._seen = _Seen()
        if self._facts.hook is not None and any(depth.name == MIDDLE for depth in depths):
            self.body.get_submodule(self._facts.hook).register_forward_hook(self._see)

    def _see(self, module: Any, inputs: Any, output: Tensor) -> None:
        self._seen.maps = output

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        """Return the middle maps, if they are wanted, and the last features as maps of one position."""
        middle, wanted = self._facts.middle, any(depth.name == MIDDLE for depth in self.depths)
        by_depth = {}
        if wanted and self._facts.hook is None:
            indices = [middle, self._facts.count - 1]  # with the last one no network stops early
            final, parts = self.body.forward_intermediates(x, indices=indices, output_fmt="NCHW")
            by_depth[MIDDLE] = parts[0]
        else:
            final = self.body.forward_features(x)
            if wanted:
                by_depth[MIDDLE] = self._seen.maps
        last: Tensor = self.body.forward_head(final, pre_logits=True)
        return {**by_depth, LAST: last.flatten(1)[:, :, None, None]}


def hub_file(name: str, *, download: bool = True) -> Path:
    """Return the file of a network's pretrained weights: in the hub's own cache, else downloaded into it."""
    import huggingface_hub
    import timm

    require_known(name, "--weights")
    config = timm.get_pretrained_cfg(name.removeprefix(PREFIX))
    repository = None if config is None else config.hf_hub_id
    if config is None or not repository:
        raise InputError(
            f"--weights {name}: timm has no weights of it on the hub.", "Give a file: --backbone NAME --weights FILE."
        )
    file = config.hf_hub_filename or "model.safetensors"
    if isinstance(cached := huggingface_hub.try_to_load_from_cache(repository, file), str):
        return Path(cached)
    if not download:
        raise InputError(f"--weights {name}: not in the hub's cache.", f"--weights {name} downloads it.")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # the error below says it once
    try:
        return Path(huggingface_hub.hf_hub_download(repository, file))
    except Exception as error:  # offline, or any error of the hub
        place = Path(huggingface_hub.constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
        raise InputError(
            f"--weights {name}: {file} of {repository} is not in the hub's cache, and cannot be downloaded.",
            f"Put it there on a machine with a network (hf download {repository} {file}, into {place}), "
            f"or give the file: --backbone {name} --weights {file}.",
        ) from error


def fit_tensors(body: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as the network names and sizes them: positions are resampled to its image size."""
    convert = getattr(importlib.import_module(type(body).__module__), "checkpoint_filter_fn", None)
    if convert is None:
        return tensors
    try:
        fitting: dict[str, Tensor] = convert(dict(tensors), body)
    except (KeyError, ValueError, RuntimeError, TypeError, AttributeError):
        return tensors  # of another network: the error that follows names what does not fit
    return fitting


def classifier_names(body: Any) -> tuple[str, ...]:
    """Return the prefixes of the last layer's tensors, which are always trained anew."""
    names = (getattr(body, "pretrained_cfg", None) or {}).get("classifier") or "fc"
    names = names if isinstance(names, tuple | list) else (names,)
    return tuple(f"{name}." for name in names)


def describe_depths(name: str) -> str | None:
    """Return a sentence if only the last layer of a network is used."""
    if facts_of(name).middle is not None:
        return None
    return f"{name} has no intermediate features: its last layer alone is used."
