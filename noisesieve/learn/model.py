"""model.safetensors and model.json: the weights that scored, and all that is needed to score with them again."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save

from noisesieve import __version__
from noisesieve.files import replacing, sha256_of, write_json
from noisesieve.learn.backbones import build
from noisesieve.learn.state import State
from noisesieve.records import Scores
from noisesieve.settings import Recipe


def save_model(folder: Path, state: State, scores: Scores, recipe: Recipe, classes: list[str]) -> None:
    """Write both files into a run folder."""
    weights = {name: value.contiguous().cpu() for name, value in state.average.state_dict().items()}
    with replacing(folder / "model.safetensors") as file:
        file.write(save(weights))
    document = {
        "schema_version": 1,
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


def weight_bytes(recipe: Recipe, classes: int) -> int:
    """How much the weights take, without making them."""
    with torch.device("meta"):
        model = build(recipe.backbone, classes=classes, image_size=recipe.image_size, seed=0)
    return sum(value.numel() * value.element_size() for value in model.state_dict().values())
