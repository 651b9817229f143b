"""Write model.safetensors and model.json: the weights of a run, and all that is needed to score with them again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from noisesieve import __version__
from noisesieve.core.files import Document, atomic_write, sha256_of, write_json
from noisesieve.core.records import NoiseModel, RankModel
from noisesieve.learn.frozen.head_data import Head
from noisesieve.learn.model_summary import ModelSummary
from noisesieve.learn.networks.pretrained import Statistics
from noisesieve.learn.recipes import NetworkChoice
from noisesieve.learn.state import TrainingState

SCHEMA_VERSION = 2  # 2: what ranks; version 1 is read
CE_WEIGHT, CE_BIAS = "ce.weight", "ce.bias"  # of the cross-entropy heads, beside those of `fc`
OWN, COMBINED = "noise_model.transition", "combined.transition"  # (K, K) of the noise models
EXTRA = (CE_WEIGHT, CE_BIAS, OWN, COMBINED)  # tensors that are no weights of the network
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
    def of_head(
        cls, head: Head, statistics: Statistics, device: torch.device, ce_head: Head | None = None
    ) -> TrainedWeights:
        """Return a head, and one that helps to rank. model.json names their backbone, whose weights are not saved."""
        tensors = {"fc.weight": head.weight, "fc.bias": head.bias}
        if ce_head is not None:
            tensors |= {CE_WEIGHT: ce_head.weight, CE_BIAS: ce_head.bias}
        return cls(tensors, statistics, head.flip, str(device))


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
    rank_model: RankModel | None = None  # what ranks; None: the probability of the given label
    exact_label: bool = False  # the label's own term has no floor


def save_model(folder: Path, weights: TrainedWeights, card: ModelCard) -> None:
    """Write model.safetensors and model.json into a run folder."""
    network, summary, ranking = card.network, card.summary, card.rank_model
    tensors, models = dict(weights.tensors), None
    if ranking is not None:
        own, combined = ranking.noise_model, ranking.combined
        tensors |= {OWN: torch.from_numpy(own.transition), COMBINED: torch.from_numpy(combined.transition)}
        models = {name: _priors(model) for name, model in (("noise_model", own), ("combined", combined))}
    with atomic_write(folder / "model.safetensors") as file:
        file.write(save({name: value.contiguous().clone() for name, value in tensors.items()}))
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
        "exact_label": card.exact_label,
        "base_rate": {"flagged": summary.flagged, "of": summary.of},
        "rank_model": models,
        "calibration": {"trust": summary.trust, "chance": summary.corruption_probability},
        "sha256": sha256_of(folder / "model.safetensors"),
    }
    write_json(folder / "model.json", document)


def _priors(model: NoiseModel) -> Document:
    return {"temperature": model.temperature, "strength": model.strength}
