"""model.safetensors and model.json: the weights that scored, and all that is needed to score with them again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from noisesieve import __version__
from noisesieve.errors import NoisesieveError, StateError
from noisesieve.files import replacing, sha256_of, write_json
from noisesieve.learn.backbones import Network, build
from noisesieve.learn.feed import Feed, Precision
from noisesieve.learn.heads import Head
from noisesieve.learn.pretrained import Statistics, adopt, weights_file
from noisesieve.learn.score import mean_probabilities, score_batch
from noisesieve.learn.state import State
from noisesieve.records import Bools, Floats
from noisesieve.settings import Recipe
from noisesieve.sieve.calibrate import knots

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Trained:
    """What training leaves to be kept: tensors, and how pictures are shown to them."""

    tensors: dict[str, Tensor]
    statistics: Statistics
    flip: bool
    device: str

    @classmethod
    def of_state(cls, state: State) -> Trained:
        """The averaged weights of a whole network."""
        tensors = {name: value.contiguous().cpu() for name, value in state.average.state_dict().items()}
        return cls(tensors, (state.mean, state.std), bool(state.flip), str(state.precision.device))

    @classmethod
    def of_head(cls, head: Head, statistics: Statistics, device: torch.device) -> Trained:
        """A head alone: its backbone is named, not kept."""
        return cls({"fc.weight": head.weight, "fc.bias": head.bias}, statistics, head.flip, str(device))


def save_model(
    folder: Path,
    trained: Trained,
    *,
    prior: list[float],
    beta: float,
    saved: Floats,
    corrupted: Bools,
    chances: Floats,
    recipe: Recipe,
    classes: list[str],
) -> None:
    """Write both files into a run folder.

    By row of the training data: `saved` what these weights alone say, `corrupted` and `chances` what was decided.
    """
    with replacing(folder / "model.safetensors") as file:
        file.write(save(trained.tensors))
    document = {
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        "backbone": recipe.backbone,
        "image_size": recipe.image_size,
        "classes": classes,
        "frozen": {"weights": recipe.weights, "sha256": recipe.weights_sha256} if recipe.frozen else None,
        "mean": trained.statistics[0],
        "std": trained.statistics[1],
        "flip": trained.flip,
        "prior": prior,
        "beta": beta,
        "sieve_eps": recipe.sieve_eps,
        **_habits(saved, corrupted, chances),
        "sha256": sha256_of(folder / "model.safetensors"),
    }
    write_json(folder / "model.json", document)


def _habits(saved: Floats, corrupted: Bools, chances: Floats) -> dict[str, Any]:
    """How the saved weights, which are not the whole verdict, judge the rows they were trained on.

    `base_rate`: how many of the rows that the scan kept they would flag. `calibration`: P(label wrong) as a broken
    line over their ln f[y].
    """
    probs, flagged, kept = saved[:, 0], saved[:, 1] > 0, ~corrupted
    places, values = knots(torch.from_numpy(probs.copy()), torch.from_numpy(chances), torch.from_numpy(corrupted))
    return {
        "base_rate": {"flagged": int(flagged[kept].sum()), "of": int(kept.sum())},
        "calibration": {"log_probability": places, "chance": values},
    }


@dataclass(frozen=True)
class Model:
    """A network that a scan left behind, with what it takes to score as the scan did."""

    network: Network
    image_size: int
    classes: list[str]
    statistics: Statistics  # mean and deviation of the pixels, a channel
    flip: bool
    prior: list[float]
    beta: float
    sieve_eps: float
    base_rate: dict[str, int] | None  # not known of an older run, as the next
    calibration: tuple[list[float], list[float]] | None
    sha256: str


def load_model(folder: Path, device: torch.device, *, body: Path | None = None) -> Model:
    """The network of a run folder. Weights that are not those the run wrote are refused, and so is another backbone.

    `body`: where the file of a frozen backbone lies, if not where its name says.
    """
    card, weights = folder / "model.json", folder / "model.safetensors"
    _verify_card(card)
    try:
        facts = json.loads(card.read_text(encoding="utf-8"))
        intact, version = sha256_of(weights) == facts["sha256"], int(facts["schema_version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{folder}: no model that can be read ({error}).", "Scan again with --force.") from error
    if version > SCHEMA_VERSION:
        raise StateError(
            f"{card}: schema version {version}, this noisesieve knows {SCHEMA_VERSION}.",
            "Upgrade noisesieve.",
        )
    if not intact:
        raise StateError(f"{weights}: changed since the run wrote it.", "Scan again with --force.")
    try:
        network = build(facts["backbone"], classes=len(facts["classes"]), image_size=facts["image_size"], seed=0)
        network.load_state_dict(load_file(weights), strict=facts.get("frozen") is None)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise StateError(f"{card}: does not describe {weights.name} ({error}).", "Scan again with --force.") from error
    if (frozen := facts.get("frozen")) is not None:
        _give_body(network, frozen, facts["backbone"], body or _own_weights(folder))
    network = network.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    line = facts.get("calibration")
    return Model(
        network=network,
        image_size=facts["image_size"],
        classes=facts["classes"],
        statistics=(facts["mean"], facts["std"]),
        flip=facts["flip"],
        prior=facts["prior"],
        beta=facts["beta"],
        sieve_eps=facts["sieve_eps"],
        base_rate=facts.get("base_rate"),
        calibration=None if line is None else (line["log_probability"], line["chance"]),
        sha256=facts["sha256"],
    )


def _give_body(network: Network, frozen: dict[str, str], backbone: str, body: Path | None) -> None:
    """The frozen backbone that the head was trained on, and no other."""
    try:
        file = body or weights_file(frozen["weights"], backbone) or Path()
        same = sha256_of(file) == frozen["sha256"]
    except (NoisesieveError, OSError) as error:
        raise StateError(
            f"The model's backbone, {frozen['weights']}, is not here: {error}",
            "Put it back, or name it: check --weights FILE.",
        ) from error
    if not same:
        raise StateError(
            f"{file}: not the backbone that the model's head was trained on.", "Name the right file with --weights."
        )
    adopt(network, file)


def _own_weights(folder: Path) -> Path | None:
    """Where the user's own file of weights lay when the run was made."""
    try:
        return Path(json.loads((folder / "run.json").read_text(encoding="utf-8"))["location"]["weights"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _verify_card(card: Path) -> None:
    """Where model.json lies in its run folder, its bytes must be those that the run wrote."""
    try:
        mark = json.loads((card.parent / "run.json").read_text(encoding="utf-8"))["files"]["model.json"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # a model on its own
    if card.exists() and sha256_of(card) != mark:
        raise StateError(f"{card}: changed since the run wrote it.", "Scan again with --force.")


def rate(model: Model, feed: Feed, rows: Tensor, *, device: torch.device, done: Callable[[int], None]) -> Tensor:
    """Class probabilities (N, K) of these pictures, one forward pass a view; `done` hears how many are ready."""
    precision, found = Precision(device), []
    batches = list(rows.split(score_batch(model.image_size))) if len(rows) else []
    with torch.inference_mode():
        for images in feed.batches(batches):
            plain = feed.normalize(images)
            found.append(
                mean_probabilities(model.network, [plain, plain.flip(3)] if model.flip else [plain], precision)
            )
            done(len(images))
    return torch.cat(found).clone() if found else torch.zeros((0, len(model.classes)), dtype=torch.float64)


def weight_bytes(recipe: Recipe, classes: int) -> int:
    """How much the weights take, without making them."""
    with torch.device("meta"):
        model = build(recipe.backbone, classes=classes, image_size=recipe.image_size, seed=0)
    return sum(value.numel() * value.element_size() for value in model.state_dict().values())
