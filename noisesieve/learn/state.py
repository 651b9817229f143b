"""The state of a training, and its conversion to and from a checkpoint. A resumed run gives the same bits."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from noisesieve.core.errors import StateError
from noisesieve.core.files import Json
from noisesieve.learn.checkpoint import Checkpoint
from noisesieve.learn.device import Precision
from noisesieve.learn.distributed import Processes
from noisesieve.learn.networks.backbones import build
from noisesieve.learn.networks.depths import Network
from noisesieve.learn.networks.pretrained import load_backbone
from noisesieve.learn.recipes import NetworkRecipe, RetrainRecipe
from noisesieve.learn.schedule import Schedule

ENOUGH_FOR_NORM = 32  # rows of one rank from which BatchNorm's own statistics are good enough


@dataclass
class TrainingState:
    """Everything that training changes. `epoch` and `step` are the next to run."""

    model: Network
    average: Network  # exponential moving average of the model's weights, used for scoring
    optimizer: torch.optim.SGD
    precision: Precision
    keep: Tensor  # (N,) bool: v of this epoch
    dropped: Tensor  # (N,) int64: number of sieve epochs in which the row was dropped
    mean: list[float] = field(default_factory=list)  # of the pixels, per channel
    std: list[float] = field(default_factory=list)
    pending: Tensor | None = None  # (N,) bool: v of the next epoch, as far as it is known
    prob_sum: Tensor | None = None  # (N, K) float32, of this rank's part of the rows
    prob_count: int = 0
    ce_snapshot: Tensor | None = None  # the same: sum of the probabilities under plain cross-entropy
    ce_snapshot_count: int = 0
    saved_model_scores: Tensor | None = None  # (N, 2) float64: `label_scores` of the last epoch, for the model card
    early_clean: Tensor | None = None  # (N,) bool: v after the epoch `divide_at`
    prior: Tensor | None = None  # (K,) float64 of this epoch, where it is counted anew in each
    margin_history: list[Tensor] = field(default_factory=list)  # E times (N,) float32, on rank 0: of each scoring pass
    stashed: dict[str, Tensor] = field(default_factory=dict)  # weights to return to after the CE snapshot
    epoch: int = 1
    step: int = 0
    scored: dict[str, int] = field(default_factory=dict)  # rows of this rank that this epoch has added to each sum
    updates: int = 0
    warmup: int | None = None  # length of the warm-up; None: not known yet
    flip: bool | None = None  # None: not tested yet
    loop_eps: float | None = None  # floor of the sieve in the loop; None: not chosen yet
    agreement: list[float] = field(default_factory=list)
    held_out_accuracy: float | None = None  # of the held-out rows' given labels, at the end of the warm-up
    epoch_facts: Json = field(default_factory=dict)  # sums over the steps of the current epoch
    history: list[Json] = field(default_factory=list)  # one row per epoch

    _OPTIONAL = ("pending", "saved_model_scores", "early_clean", "prior")
    _SUMS = ("prob_sum", "ce_snapshot")  # large; each rank has its part
    _FACTS = (
        "prob_count",
        "ce_snapshot_count",
        "epoch",
        "step",
        "scored",
        "updates",
        "warmup",
        "flip",
        "loop_eps",
        "agreement",
        "held_out_accuracy",
        "epoch_facts",
        "history",
    )

    def schedule(self, recipe: NetworkRecipe) -> Schedule:
        """Return the schedule, with the longest possible warm-up while its end is unknown."""
        return Schedule(recipe, recipe.warmup_epochs if self.warmup is None else self.warmup)

    def to_checkpoint(self, processes: Processes) -> Checkpoint:
        """Return the state as tensors and JSON facts.

        BatchNorm's statistics are each rank's own until the epoch ends: averaged here, they would let a run that was
        saved end in other bits than one that was not.
        """
        tensors = self._weights() | {f"stashed.{name}": value for name, value in self.stashed.items()}
        tensors |= {"keep": self.keep, "dropped": self.dropped}
        tensors |= {name: value for name in self._OPTIONAL if (value := getattr(self, name)) is not None}
        tensors = {name: value.detach().cpu().clone() for name, value in tensors.items()}  # training changes them
        margins = {f"margin_history.{i}": value for i, value in enumerate(self.margin_history)}
        parts = {name: value for name in self._SUMS if (value := getattr(self, name)) is not None}
        facts: Json = {name: copy.copy(getattr(self, name)) for name in self._FACTS}
        facts["scaler"] = self.precision.scaler.state_dict()
        own = {} if processes.size == 1 else {str(i): value.cpu() for i, value in enumerate(self.norm_buffers())}
        return Checkpoint(tensors | margins, facts, parts, {name: value.clone() for name, value in own.items()})

    def prior_of_kept(self, labels: Tensor, classes: int) -> Tensor:
        """Return the frequencies of the labels of the rows that are kept as this epoch begins, (K,) float64."""
        if self.prior is None:
            self.prior = torch.bincount(labels[self.keep], minlength=classes).double() / self.keep.sum()
        return self.prior

    def stash_weights(self) -> None:
        """Copy the current weights, to return to them later."""
        self.stashed = {name: value.detach().clone() for name, value in self._weights().items()}

    def restore_stash(self) -> None:
        """Return to the stashed weights."""
        self._set_weights(self.stashed)
        self.stashed = {}

    def _weights(self) -> dict[str, Tensor]:
        """Return the tensors of model, average and momentum."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average.state_dict().items()}
        for i, parameter in enumerate(self.model.parameters()):
            buffer = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if buffer is not None:
                tensors[f"momentum.{i}"] = buffer
        return tensors

    def _set_weights(self, tensors: dict[str, Tensor]) -> None:
        self.model.load_state_dict(_part(tensors, "model."))
        self.average.load_state_dict(_part(tensors, "average."))
        momentum = _part(tensors, "momentum.")
        self.optimizer.state.clear()
        for i, parameter in enumerate(self.model.parameters()):
            if str(i) in momentum:
                buffer = torch.empty_like(parameter).copy_(momentum[str(i)])  # the parameter's own memory layout
                self.optimizer.state[parameter]["momentum_buffer"] = buffer

    def restore(self, checkpoint: Checkpoint) -> None:
        """Set everything from a checkpoint. One of another network, or of nothing that we wrote, is refused."""
        tensors, facts, parts, own = checkpoint
        try:
            self._set_weights(tensors)
            for i, buffer in enumerate(self.norm_buffers() if own else []):
                buffer.copy_(own[str(i)])
            self.stashed = _part(tensors, "stashed.")
            self.keep, self.dropped = tensors["keep"], tensors["dropped"]
            for name in self._OPTIONAL:
                setattr(self, name, tensors.get(name))
            for name in self._SUMS:
                setattr(self, name, parts[name].float() if name in parts else None)
            history = _part(tensors, "margin_history.")
            earlier = list(tensors["margin_history"]) if "margin_history" in tensors else []
            self.margin_history = earlier or [history[str(i)] for i in range(len(history))]
            facts.setdefault("scored", {})  # of an earlier version
            for name in self._FACTS:
                setattr(self, name, facts[name])
            if facts["scaler"]:
                self.precision.scaler.load_state_dict(facts["scaler"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise StateError(f"The checkpoint does not fit ({error}).", "Start a new run with --force.") from error

    def norm_buffers(self) -> list[Tensor]:
        """Return BatchNorm's running statistics, which differ between the ranks of a CPU run."""
        buffers = (*self.model.buffers(), *self.average.buffers())
        return [buffer for buffer in buffers if buffer.is_floating_point()]

    def update_average(self, epoch_steps: int, ema_epochs: float) -> None:
        """Move the averaged weights towards the model's; faster in the first steps."""
        horizon = ema_epochs * epoch_steps
        weight = 1.0 if horizon < 1 else max(1 / horizon, 9 / (self.updates + 10))
        torch._foreach_lerp_(*self.averaged, weight)

    @functools.cached_property
    def averaged(self) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors of the averaged weights, and those of the model that they follow; loading changes them in place.

        Seven lines of ours: torch's AveragedModel has a constant decay, and waits for the device in every update.
        """
        pairs = zip(self.average.state_dict().values(), self.model.state_dict().values(), strict=True)
        floating = [(ours, theirs) for ours, theirs in pairs if ours.is_floating_point()]
        return [ours for ours, _ in floating], [theirs for _, theirs in floating]


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def _parameter_groups(model: Network, recipe: NetworkRecipe | RetrainRecipe) -> list[dict[str, Any]]:
    """Return the body and the last layer, each with its share of the learning rate; biases and norms apart."""
    head = {id(parameter) for parameter in model.fc.parameters()}
    body = [parameter for parameter in model.parameters() if id(parameter) not in head]
    parts = ((body, recipe.body_lr), (list(model.fc.parameters()), 1.0))
    if recipe.decay_biases:
        return [{"params": part, "share": share} for part, share in parts]
    return [
        {"params": [p for p in part if (p.ndim > 1) == decayed], "share": share}
        | ({} if decayed else {"weight_decay": 0.0})
        for part, share in parts
        for decayed in (True, False)
    ]


def initial_state(
    recipe: NetworkRecipe | RetrainRecipe, *, rows: int, classes: int, processes: Processes, weights: Path | None = None
) -> TrainingState:
    """Return the state before the first step. `weights`: file of the initial weights of all layers but the last."""
    device, precision = processes.device, Precision(processes.device)
    model = build(
        recipe.backbone, classes=classes, image_size=recipe.image_size, seed=recipe.seed, depths=recipe.depths
    )
    if weights is not None:
        load_backbone(model, weights)
    if processes.size > 1 and device.type == "cuda" and recipe.batch_size // processes.size < ENOUGH_FOR_NORM:
        # It makes host and device wait for each other in every layer: only where a rank has too few rows of its own.
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(
        _parameter_groups(model, recipe),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.nesterov,
        fused=device.type == "cuda" or None,
    )
    if recipe.momentum:
        for parameter in model.parameters():
            # Made beforehand: with a gradient scaler the fused kernel may skip the first step, which would make it.
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return TrainingState(
        model=model,
        average=average,
        optimizer=optimizer,
        precision=precision,
        keep=torch.ones(rows, dtype=torch.bool),
        dropped=torch.zeros(rows, dtype=torch.int64),
        flip=recipe.flip,
    )
