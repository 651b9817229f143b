"""All that training changes, and its way into a checkpoint and back. A resumed run continues bit for bit."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from noisesieve.learn.backbones import Network, build
from noisesieve.learn.feed import Precision
from noisesieve.learn.pretrained import adopt
from noisesieve.learn.world import World
from noisesieve.settings import Recipe


@dataclass
class State:
    """Where training stands. Epoch and step are the next to do."""

    model: Network
    average: Network  # the weights that score: an exponential mean of the model's
    optimizer: torch.optim.SGD
    precision: Precision
    keep: Tensor  # (N,) bool: v of this epoch
    dropped: Tensor  # (N,) int64: sieve epochs without this row
    mean: list[float] = field(default_factory=list)  # of the pixels, a channel
    std: list[float] = field(default_factory=list)
    pending: Tensor | None = None  # (N,) bool: v of the next epoch, as far as it is known
    prob_sum: Tensor | None = None  # (N, K) float64
    prob_count: int = 0
    opinion: Tensor | None = None  # (N, K) float64: sum of what plain cross-entropy said
    opinion_count: int = 0
    alone: Tensor | None = None  # (N, 2) float64: what the last weights say of each given label, for the model's card
    division: Tensor | None = None  # (N,) bool: v after the epoch that consistency training starts from
    course: Tensor | None = None  # (E, N) float32: every row's margin at each scoring
    parked: dict[str, Tensor] = field(default_factory=dict)  # where the ramp begins, while plain CE settles
    epoch: int = 1
    step: int = 0
    updates: int = 0
    warmup: int | None = None  # its real length, once known
    flip: bool | None = None  # None: not tried yet
    loop_eps: float | None = None  # of the sieve in the loop; None: not chosen yet
    agreement: list[float] = field(default_factory=list)
    epoch_facts: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    _OPTIONAL = ("pending", "prob_sum", "opinion", "alone", "division", "course")
    _FACTS = (
        "prob_count",
        "opinion_count",
        "epoch",
        "step",
        "updates",
        "warmup",
        "flip",
        "loop_eps",
        "agreement",
        "epoch_facts",
        "history",
    )

    def to_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain facts."""
        tensors = self._weights() | {f"parked.{name}": value for name, value in self.parked.items()}
        tensors |= {"keep": self.keep, "dropped": self.dropped}
        tensors |= {name: value for name in self._OPTIONAL if (value := getattr(self, name)) is not None}
        facts: dict[str, Any] = {name: copy.copy(getattr(self, name)) for name in self._FACTS}
        facts["scaler"] = self.precision.scaler.state_dict()
        return tensors, facts

    def note_margins(self, margins: Tensor) -> None:
        """Add a scoring to the course of every row's margin."""
        row = margins.float()[None]
        self.course = row if self.course is None else torch.cat((self.course, row))

    def park(self) -> None:
        """Remember the weights as they are: training leaves them for a while."""
        self.parked = {name: value.detach().clone() for name, value in self._weights().items()}

    def unpark(self) -> None:
        """Go back to the remembered weights."""
        self._set_weights(self.parked)
        self.parked = {}

    def _weights(self) -> dict[str, Tensor]:
        """Model, average and momentum."""
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

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Take everything over from a checkpoint."""
        self._set_weights(tensors)
        self.parked = _part(tensors, "parked.")
        self.keep, self.dropped = tensors["keep"], tensors["dropped"]
        for name in self._OPTIONAL:
            setattr(self, name, tensors.get(name))
        for name in self._FACTS:
            setattr(self, name, facts[name])
        if facts["scaler"]:
            self.precision.scaler.load_state_dict(facts["scaler"])

    def norm_buffers(self) -> list[Tensor]:
        """BatchNorm's running statistics, which the ranks of a CPU run gather apart from each other."""
        buffers = (*self.model.buffers(), *self.average.buffers())
        return [buffer for buffer in buffers if buffer.is_floating_point()]

    def update_average(self, steps_an_epoch: int, ema_epochs: float) -> None:
        """Move the scoring weights towards the model's; they follow closely in the first steps."""
        horizon = ema_epochs * steps_an_epoch
        weight = 1.0 if horizon < 1 else max(1 / horizon, 9 / (self.updates + 10))
        ours = [v for v in self.average.state_dict().values() if v.is_floating_point()]
        theirs = [v for v in self.model.state_dict().values() if v.is_floating_point()]
        torch._foreach_lerp_(ours, theirs, weight)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}


def fresh(recipe: Recipe, *, rows: int, classes: int, world: World, weights: Path | None = None) -> State:
    """The state before the first step; `weights` is the file that everything but the head starts from."""
    device, precision = world.device, Precision(world.device)
    model = build(recipe.backbone, classes=classes, image_size=recipe.image_size, seed=recipe.seed)
    if weights is not None:
        adopt(model, weights)
    if world.size > 1 and device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = copy.deepcopy(model).requires_grad_(False)
    head = {id(parameter) for parameter in model.fc.parameters()}
    body = [parameter for parameter in model.parameters() if id(parameter) not in head]
    optimizer = torch.optim.SGD(
        [{"params": body, "share": recipe.body_lr}, {"params": list(model.fc.parameters()), "share": 1.0}],
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.nesterov,
        # With a gradient scaler the fused kernel may skip the step that should create the momentum.
        fused=(device.type == "cuda" and not precision.scaler.is_enabled()) or None,
    )
    return State(
        model=model,
        average=average,
        optimizer=optimizer,
        precision=precision,
        keep=torch.ones(rows, dtype=torch.bool),
        dropped=torch.zeros(rows, dtype=torch.int64),
        flip=recipe.flip,
        warmup=None if recipe.adaptive_warmup else recipe.warmup_epochs,
        loop_eps=None if recipe.adaptive_eps else recipe.loop_eps,
    )
