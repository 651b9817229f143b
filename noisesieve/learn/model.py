"""model.safetensors and model.json: the weights that scored, and all that is needed to score with them again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import nn

from noisesieve import __version__
from noisesieve.errors import StateError
from noisesieve.files import replacing, sha256_of, write_json
from noisesieve.learn.backbones import build
from noisesieve.learn.state import State
from noisesieve.records import Scores
from noisesieve.settings import Recipe

SCHEMA_VERSION = 1


def save_model(folder: Path, state: State, scores: Scores, recipe: Recipe, classes: list[str]) -> None:
    """Write both files into a run folder."""
    weights = {name: value.contiguous().cpu() for name, value in state.average.state_dict().items()}
    with replacing(folder / "model.safetensors") as file:
        file.write(save(weights))
    document = {
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        "backbone": recipe.backbone,
        "image_size": recipe.image_size,
        "classes": classes,
        "mean": state.mean,
        "std": state.std,
        "flip": bool(state.flip),
        "prior": scores.prior.tolist(),
        "beta": scores.beta,
        "sieve_eps": recipe.sieve_eps,
        "sha256": sha256_of(folder / "model.safetensors"),
    }
    write_json(folder / "model.json", document)


@dataclass(frozen=True)
class Model:
    """A network that a scan left behind, with what it takes to score as the scan did."""

    network: nn.Module
    image_size: int
    classes: list[str]
    statistics: tuple[list[float], list[float]]  # mean and deviation of the pixels, a channel
    flip: bool


def load_model(folder: Path, device: torch.device) -> Model:
    """The network of a run folder. Weights that are not those the run wrote are refused."""
    card, weights = folder / "model.json", folder / "model.safetensors"
    try:
        facts = json.loads(card.read_text(encoding="utf-8"))
        intact = sha256_of(weights) == facts["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{folder}: no model that can be read ({error}).", "Scan again with --force.") from error
    if facts["schema_version"] > SCHEMA_VERSION:
        raise StateError(
            f"{card}: schema version {facts['schema_version']}, this noisesieve knows {SCHEMA_VERSION}.",
            "Upgrade noisesieve.",
        )
    if not intact:
        raise StateError(f"{weights}: changed since the run wrote it.", "Scan again with --force.")
    network = build(facts["backbone"], classes=len(facts["classes"]), image_size=facts["image_size"], seed=0)
    network.load_state_dict(load_file(weights))
    network = network.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    statistics = (facts["mean"], facts["std"])
    return Model(network, facts["image_size"], facts["classes"], statistics, facts["flip"])


def weight_bytes(recipe: Recipe, classes: int) -> int:
    """How much the weights take, without making them."""
    with torch.device("meta"):
        model = build(recipe.backbone, classes=classes, image_size=recipe.image_size, seed=0)
    return sum(value.numel() * value.element_size() for value in model.state_dict().values())
