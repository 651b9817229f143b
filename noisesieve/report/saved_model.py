"""Read model.safetensors and model.json again: a network that scores as its scan did. They may be a stranger's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from noisesieve.core.documents import from_json
from noisesieve.core.errors import InputError, NoisesieveError, StateError, UsageError
from noisesieve.core.files import sha256_of, sha256_of_weights
from noisesieve.core.records import NoiseModel, RankModel
from noisesieve.core.untrusted import read_json
from noisesieve.learn.frozen.head_data import Head
from noisesieve.learn.networks.backbones import LITE, build
from noisesieve.learn.networks.lite import with_timm_names
from noisesieve.learn.networks.pretrained import IMAGENET, Statistics, load_backbone, weights_file
from noisesieve.learn.networks.timm_net import is_timm
from noisesieve.learn.recipes import LAST
from noisesieve.report.model_card import CE_BIAS, CE_WEIGHT, COMBINED, EMBEDDINGS, EXTRA, OWN, SCHEMA_VERSION
from noisesieve.report.run import RunFolder, verify_written

HIGHEST_TEMPERATURE = 100.0  # of a noise model; far above any that is tried
EARLIER_KEYS = {"log_probability": "trust"}  # of the calibration of version 1
NARROWEST = 64  # features of a network, at the least
LARGEST = 1024  # side of the images, as --image-size allows


@dataclass(frozen=True)
class SavedModel:
    """A loaded network, with what is needed to score as its scan did."""

    network: Any  # a Network or, for embeddings, a linear layer
    image_size: int
    classes: list[str]
    statistics: Statistics  # mean and deviation of the pixels, per channel
    flip: bool
    prior: list[float]
    beta: float
    sieve_eps: float
    base_rate: dict[str, int] | None  # None for an older run, as is `calibration`
    calibration: tuple[list[float], list[float]] | None  # over ln f[y]; with a rank model over the negative suspicion
    sha256: str
    rank_model: RankModel | None = None
    heads: int = 1  # linear classifiers in `network.fc`: two where cross-entropy heads help to rank
    exact_label: bool = False
    is_earlier: bool = False  # heads of the first method: nothing ranks but the given label's probability


@dataclass(frozen=True)
class _FrozenWeights:
    weights: str
    sha256: str


@dataclass(frozen=True)
class _Curve:
    trust: list[float]
    chance: list[float]


@dataclass(frozen=True)
class _Priors:
    temperature: float
    strength: float


@dataclass(frozen=True)
class _RankModel:
    noise_model: _Priors
    combined: _Priors


@dataclass(frozen=True)
class _Card:
    """model.json as it is read. It may be a stranger's: `check` bounds everything that memory is asked for."""

    schema_version: int
    backbone: str
    image_size: int
    classes: list[str]
    mean: list[float]
    std: list[float]
    flip: bool
    prior: list[float]
    beta: float
    sieve_eps: float
    sha256: str
    depths: tuple[str, ...] = (LAST,)  # older runs have only one
    frozen: _FrozenWeights | None = None
    base_rate: dict[str, int] | None = None
    calibration: _Curve | None = None
    rank_model: _RankModel | None = None  # schema version 1 has none
    exact_label: bool = False

    def require_bounds(self) -> None:
        """Raise ValueError for values that no scan writes."""
        if not 0 <= self.image_size <= LARGEST:
            raise ValueError(f"image_size is {self.image_size}")
        if len(set(self.classes)) != len(self.classes) or len(self.classes) != len(self.prior):
            raise ValueError("classes and prior do not fit")
        if {len(self.mean), len(self.std)} - {0, 3} or not 0 < self.sieve_eps <= 1 or min(self.std, default=1) <= 0:
            raise ValueError("mean, std or sieve_eps is out of bounds")
        if self.base_rate is not None and not {"flagged", "of"} <= self.base_rate.keys():
            raise ValueError("base_rate has no counts")
        curve = self.calibration
        if curve is not None and (not curve.chance or len(curve.chance) != len(curve.trust)):
            raise ValueError("the calibration has no curve")
        for model in (self.rank_model.noise_model, self.rank_model.combined) if self.rank_model is not None else ():
            if not 0 < model.temperature <= HIGHEST_TEMPERATURE:
                raise ValueError(f"a temperature is {model.temperature}")

    def to_model(self, network: torch.nn.Module, tensors: dict[str, Tensor]) -> SavedModel:
        """Return the model with its loaded network. `tensors` are those of its file."""
        curve = self.calibration
        return SavedModel(
            network=network,
            image_size=self.image_size,
            classes=self.classes,
            statistics=(self.mean, self.std),
            flip=self.flip,
            prior=self.prior,
            beta=self.beta,
            sieve_eps=self.sieve_eps,
            exact_label=self.exact_label,
            base_rate=self.base_rate,
            calibration=None if curve is None else (curve.trust, curve.chance),
            sha256=self.sha256,
            rank_model=self._rank_model(tensors),
            heads=2 if CE_WEIGHT in tensors else 1,
            is_earlier=self.schema_version < SCHEMA_VERSION
            and (self.frozen is not None or self.backbone == EMBEDDINGS),
        )

    def _rank_model(self, tensors: dict[str, Tensor]) -> RankModel | None:
        if self.rank_model is None:
            return None
        models = []
        for name, priors in ((OWN, self.rank_model.noise_model), (COMBINED, self.rank_model.combined)):
            transition = tensors[name].double()
            if transition.shape != (len(self.classes),) * 2 or not bool(((transition >= 0) & (transition <= 1)).all()):
                raise ValueError(f"{name} is no transition between the classes")
            models.append(NoiseModel(priors.temperature, priors.strength, transition.numpy()))
        return RankModel(*models)


def load_vector_model(folder: Path) -> SavedModel:
    """Load the head of a run that was scanned from embeddings: a linear layer on vectors."""
    card, weights = _read_card(folder)
    if card.backbone != EMBEDDINGS:
        raise StateError(f"{folder}: its model scores images, not embeddings.", "Leave --embeddings out.")
    with _fitting(folder):
        tensors = load_file(weights)
        if tensors["fc.weight"].shape[0] != len(card.classes):
            raise ValueError(f"{tensors['fc.weight'].shape[0]} classes, not {len(card.classes)}")
        return card.to_model(_classifier(tensors).eval(), tensors)


def load_head(folder: Path) -> Head:
    """Load the head of a frozen run alone: a linear layer on the features of its backbone."""
    card, weights = _read_card(folder)
    with _fitting(folder):
        tensors = load_file(weights)
        return Head(tensors["fc.weight"], tensors["fc.bias"], card.flip)


def _classifier(tensors: dict[str, Tensor]) -> torch.nn.Linear:
    """Return the linear classifier, with the outputs of the cross-entropy heads behind those that decide."""
    weight, bias = tensors["fc.weight"], tensors["fc.bias"]
    if CE_WEIGHT in tensors:
        if tensors[CE_WEIGHT].shape != weight.shape or tensors[CE_BIAS].shape != bias.shape:
            raise ValueError("the cross-entropy heads have another shape than those that decide")
        weight, bias = torch.cat((weight, tensors[CE_WEIGHT])), torch.cat((bias, tensors[CE_BIAS]))
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def load_model(folder: Path, device: torch.device, *, backbone: str | None = None, ranks: bool = True) -> SavedModel:
    """Load the network of a run folder. Changed weights and another backbone than the run's are refused.

    Without `ranks` its last layer has only the classifier that decides.

    `backbone` names the weights of a frozen one: their file, if it was moved, or what is to be downloaded. Nothing is
    downloaded because the model asks for it.
    """
    card, weights = _read_card(folder)
    if card.backbone == EMBEDDINGS:
        raise StateError(f"{folder}: its model scores embeddings, not images.", "Give those of the batch: --embeddings")
    file = None if card.frozen is None else _frozen_file(folder, card.frozen, card.backbone, backbone)
    with _fitting(folder):
        if len(card.classes) * NARROWEST > weights.stat().st_size or not card.image_size or not card.mean:
            raise ValueError("more classes than weights, or no size or statistics of images")
        if is_timm(card.backbone):
            _require_memory(card, weights if file is None else file)
        network = build(
            card.backbone, classes=len(card.classes), image_size=card.image_size, seed=0, depths=card.depths
        )
        tensors = load_file(weights)
        if not ranks:
            tensors.pop(CE_WEIGHT, None)
        own = {name: value for name, value in tensors.items() if name not in EXTRA}
        network.load_state_dict(with_timm_names(own), strict=file is None)
        network.fc = _classifier(tensors)
        model = card.to_model(network, tensors)
    if file is not None:
        load_backbone(network, file)
    network = network.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    return replace(model, network=network)


@contextlib.contextmanager
def _fitting(folder: Path) -> Iterator[None]:
    """Turn what a card that does not fit its weights leads to into an error of the state."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError, UsageError, SafetensorError) as error:
        raise StateError(
            f"{folder / 'model.json'}: does not describe model.safetensors ({error}).", "Scan again with --force."
        ) from error


def _require_memory(card: _Card, file: Path) -> None:
    """Raise ValueError for a network with far more weights than their file has, before it is built."""
    with torch.device("meta"):
        network = build(
            card.backbone, classes=len(card.classes), image_size=card.image_size, seed=0, depths=card.depths
        )
    # A weight takes a byte at the least.
    need = sum(value.numel() for name, value in network.named_parameters() if not name.startswith("fc."))
    if need > file.stat().st_size:
        raise ValueError(f"{card.backbone} has {need:,} weights, more than {file.name}")


def _read_card(folder: Path) -> tuple[_Card, Path]:
    """Return model.json and the file of the weights. Changed ones are refused."""
    weights = folder / "model.safetensors"
    card = _read_facts(folder)
    try:
        intact = sha256_of(weights) == card.sha256
    except OSError as error:
        raise StateError(f"{weights}: cannot be read ({error.strerror}).", "Scan again with --force.") from error
    if not intact:
        raise StateError(f"{weights}: changed since the run wrote it.", "Scan again with --force.")
    return card, weights


def _read_facts(folder: Path) -> _Card:
    file = folder / "model.json"
    verify_written(file)
    try:
        document = read_json(file)
        version = document.get("schema_version") if isinstance(document, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise StateError(
                f"{file}: schema version {version}, this noisesieve reads up to {SCHEMA_VERSION}.",
                "Upgrade noisesieve.",
            )
        if isinstance(document, dict) and version == 1 and isinstance(curve := document.get("calibration"), dict):
            document["calibration"] = {EARLIER_KEYS.get(name, name): value for name, value in curve.items()}
        card = from_json(_Card, document)
        card.require_bounds()
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{file}: no model that can be read ({error}).", "Scan again with --force.") from error
    return card


def statistics_of_model(folder: Path) -> Statistics:
    """Return mean and deviation per channel that the model's images were normalized with."""
    card = _read_facts(folder)
    return card.mean, card.std


def _frozen_file(folder: Path, frozen: _FrozenWeights, backbone: str, wanted: str | None) -> Path:
    """Return the file of the backbone that the head was trained on. Any other is refused."""
    known = RunFolder(folder).read()
    recorded = (known.location or {}).get("weights") if known is not None and known.own else None
    try:
        if wanted is not None:
            file = weights_file(wanted, backbone) or Path()
        elif recorded is not None:
            file = Path(recorded)
        elif frozen.weights in (LITE, IMAGENET) or is_timm(frozen.weights):
            file = weights_file(frozen.weights, backbone, download=False) or Path()
        else:
            raise InputError(f"{frozen.weights}: a file that only you can name.")
        same = sha256_of_weights(file) == frozen.sha256
    except (NoisesieveError, OSError) as error:
        raise StateError(
            f"The model's backbone, {frozen.weights}, is missing: {error}",
            "Put it back, or name it: check --weights FILE, or the name to download it.",
        ) from error
    if not same:
        raise StateError(
            f"{file}: not the backbone that the model's head was trained on.", "Give the right file with --weights."
        )
    return file
