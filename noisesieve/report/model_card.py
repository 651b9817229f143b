"""model.safetensors and model.json: the weights of a run, and all that is needed to score with them again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from noisesieve import __version__
from noisesieve.core.errors import NoisesieveError, StateError
from noisesieve.core.files import Json, atomic_write, sha256_of, sha256_of_weights, write_json
from noisesieve.core.recipes import LAST, NetworkChoice
from noisesieve.core.records import ModelSummary
from noisesieve.learn.frozen.head_data import Head
from noisesieve.learn.networks.backbones import build
from noisesieve.learn.networks.depths import Network
from noisesieve.learn.networks.lite import with_timm_names
from noisesieve.learn.networks.pretrained import Statistics, load_backbone, weights_file
from noisesieve.learn.state import TrainingState
from noisesieve.report.run import verify_written

SCHEMA_VERSION = 1
EMBEDDINGS = "embeddings"  # stands for the backbone of heads on the user's own embeddings


@dataclass(frozen=True)
class TrainedWeights:
    """The weights to save, and how images must be prepared for them."""

    tensors: dict[str, Tensor]
    statistics: Statistics
    flip: bool
    device: str

    @classmethod
    def of_state(cls, state: TrainingState) -> TrainedWeights:
        """Return the averaged weights of a whole network."""
        tensors = {name: value.contiguous().cpu() for name, value in state.average.state_dict().items()}
        return cls(tensors, (state.mean, state.std), bool(state.flip), str(state.precision.device))

    @classmethod
    def of_head(cls, head: Head, statistics: Statistics, device: torch.device) -> TrainedWeights:
        """Return a head alone: model.json names its backbone, whose weights are not saved."""
        return cls({"fc.weight": head.weight, "fc.bias": head.bias}, statistics, head.flip, str(device))


@dataclass(frozen=True)
class ModelCard:
    """What model.json says of the weights, beside their file."""

    network: NetworkChoice
    frozen: bool
    classes: list[str]
    prior: list[float]
    beta: float
    sieve_eps: float
    summary: ModelSummary


def save_model(folder: Path, weights: TrainedWeights, card: ModelCard) -> None:
    """Write model.safetensors and model.json into a run folder."""
    network, summary = card.network, card.summary
    with atomic_write(folder / "model.safetensors") as file:
        file.write(save(weights.tensors))
    document = {
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        "backbone": network.backbone,
        "depths": list(network.depths),
        "image_size": network.image_size,
        "classes": card.classes,
        "frozen": {"weights": network.weights, "sha256": network.weights_sha256} if card.frozen else None,
        "mean": weights.statistics[0],
        "std": weights.statistics[1],
        "flip": weights.flip,
        "prior": card.prior,
        "beta": card.beta,
        "sieve_eps": card.sieve_eps,
        "base_rate": {"flagged": summary.flagged, "of": summary.of},
        "calibration": {"log_probability": summary.log_probability, "chance": summary.corruption_probability},
        "sha256": sha256_of(folder / "model.safetensors"),
    }
    write_json(folder / "model.json", document)


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
    calibration: tuple[list[float], list[float]] | None
    sha256: str


def load_vector_model(folder: Path) -> SavedModel:
    """Load the head of a run that was scanned from embeddings: a linear layer on vectors."""
    facts, _ = _read_card(folder)
    if facts.get("backbone") != EMBEDDINGS:
        raise StateError(f"{folder}: its model scores images, not embeddings.", "Leave --embeddings out.")
    tensors = load_file(folder / "model.safetensors")
    layer = torch.nn.Linear(*reversed(tensors["fc.weight"].shape))
    layer.load_state_dict({"weight": tensors["fc.weight"], "bias": tensors["fc.bias"]})
    return _saved_model(facts, layer.eval())


def load_model(folder: Path, device: torch.device, *, backbone_file: Path | None = None) -> SavedModel:
    """Load the network of a run folder. Changed weights and another backbone than the run's are refused.

    `backbone_file`: the weights file of a frozen backbone, if it was moved.
    """
    facts, weights = _read_card(folder)
    if facts.get("backbone") == EMBEDDINGS:
        raise StateError(f"{folder}: its model scores embeddings, not images.", "Give those of the batch: --embeddings")
    try:
        network = build(
            facts["backbone"],
            classes=len(facts["classes"]),
            image_size=facts["image_size"],
            seed=0,
            depths=tuple(facts.get("depths", (LAST,))),  # older runs have only one
        )
        network.load_state_dict(with_timm_names(load_file(weights)), strict=facts.get("frozen") is None)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise StateError(
            f"{folder / 'model.json'}: does not describe {weights.name} ({error}).", "Scan again with --force."
        ) from error
    if (frozen := facts.get("frozen")) is not None:
        _load_frozen_backbone(network, frozen, facts["backbone"], backbone_file or _own_weights(folder))
    network = network.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    return _saved_model(facts, network)


def _saved_model(facts: Json, network: torch.nn.Module) -> SavedModel:
    curve = facts.get("calibration")
    return SavedModel(
        network=network,
        image_size=facts["image_size"],
        classes=facts["classes"],
        statistics=(facts["mean"], facts["std"]),
        flip=facts["flip"],
        prior=facts["prior"],
        beta=facts["beta"],
        sieve_eps=facts["sieve_eps"],
        base_rate=facts.get("base_rate"),
        calibration=None if curve is None else (curve["log_probability"], curve["chance"]),
        sha256=facts["sha256"],
    )


def _read_card(folder: Path) -> tuple[Json, Path]:
    """Return model.json and the file of the weights. Changed ones are refused."""
    card, weights = folder / "model.json", folder / "model.safetensors"
    verify_written(card)
    try:
        facts = json.loads(card.read_text(encoding="utf-8"))
        intact, version = sha256_of(weights) == facts["sha256"], int(facts["schema_version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{folder}: no model that can be read ({error}).", "Scan again with --force.") from error
    if version > SCHEMA_VERSION:
        raise StateError(
            f"{card}: schema version {version}, this noisesieve reads up to {SCHEMA_VERSION}.",
            "Upgrade noisesieve.",
        )
    if not intact:
        raise StateError(f"{weights}: changed since the run wrote it.", "Scan again with --force.")
    return facts, weights


def statistics_of_model(folder: Path) -> Statistics:
    """Return mean and deviation per channel that the model's images were normalized with."""
    card = folder / "model.json"
    verify_written(card)
    try:
        facts = json.loads(card.read_text(encoding="utf-8"))
        return facts["mean"], facts["std"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{card}: missing or damaged.", "Scan again with --force.") from error


def _load_frozen_backbone(network: Network, frozen: dict[str, str], backbone: str, file: Path | None) -> None:
    """Load the backbone that the head was trained on. Any other is refused."""
    try:
        file = file or weights_file(frozen["weights"], backbone) or Path()
        same = sha256_of_weights(file) == frozen["sha256"]
    except (NoisesieveError, OSError) as error:
        raise StateError(
            f"The model's backbone, {frozen['weights']}, is missing: {error}",
            "Put it back, or give its path: check --weights FILE.",
        ) from error
    if not same:
        raise StateError(
            f"{file}: not the backbone that the model's head was trained on.", "Give the right file with --weights."
        )
    load_backbone(network, file)


def _own_weights(folder: Path) -> Path | None:
    """Return the path of the user's own weights file when the run was made, or None."""
    try:
        return Path(json.loads((folder / "run.json").read_text(encoding="utf-8"))["location"]["weights"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
