"""One update of the weights, the same for a scan and for a retraining. Nothing in it waits for the device.

Loss, gradient norm and the check for infinite values stay on the device. The first bad step is remembered there, and is
read where the loop looks: before a checkpoint is written, at the end of an epoch, and every few steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from noisesieve.core.errors import TrainingError
from noisesieve.learn.distributed import Processes
from noisesieve.learn.state import TrainingState

LOOK_STEPS = 16  # steps between two looks on a GPU; on a CPU a look costs nothing, and each step is looked at


class Updater:
    """Updates a training's weights step by step, and keeps sums over the steps of an epoch on the device."""

    def __init__(
        self, state: TrainingState, processes: Processes, *, image_size: int, clip_norm: float, ema_epochs: float
    ) -> None:
        self.state, self.processes = state, processes
        self.module = processes.parallel(state.model, image_size)  # the forward pass of training goes through this
        self.parameters = list(state.model.parameters())
        self.clip_norm, self.ema_epochs = clip_norm, ema_epochs
        self.look_steps = 1 if processes.device.type == "cpu" else LOOK_STEPS
        self._first_bad = torch.full((), -1, dtype=torch.int32, device=processes.device)
        self._sums = torch.zeros(0, device=processes.device)
        self.last: list[float] = []  # the sums at the last look

    def begin(self, sums: Sequence[float]) -> None:
        """Start the sums of an epoch; a resumed epoch goes on with those of its checkpoint, which are of all ranks."""
        kind = torch.float32 if self.processes.device.type == "mps" else torch.float64  # Metal has no float64
        own = torch.tensor(sums, dtype=kind)
        self._sums = (own if self.processes.is_leader else torch.zeros_like(own)).to(self.processes.device)
        self._first_bad.fill_(-1)
        self.last = list(sums)

    def step(self, loss: Tensor, addends: Sequence[Tensor], *, rate: float, steps: int) -> None:
        """Update the weights once, and the averaged weights. `steps` is the number of steps of an epoch.

        `loss` and `addends` are this rank's share: over all ranks they add up to the step's loss and to what the sums
        grow by.
        """
        state, scaler = self.state, self.state.precision.scaler
        for group in state.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        state.optimizer.zero_grad()
        scaler.scale(loss * self.processes.size).backward()  # DDP divides by their number
        scaler.unscale_(state.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        total = loss.detach() if scaler.is_enabled() else loss.detach() + norm  # a scaler handles infinite norms itself
        bad = ~torch.isfinite(total) & (self._first_bad < 0)
        self._first_bad.copy_(torch.where(bad, state.step, self._first_bad))
        scaler.step(state.optimizer)
        scaler.update()
        self._sums += torch.stack([addend.detach() for addend in addends])
        state.updates += 1
        state.update_average(steps, self.ema_epochs)

    def end(self) -> None:
        """Let go of what the ranks train with, before they end."""
        self.module = self.state.model

    def looks_after(self, step: int) -> bool:
        """Return True if the loop looks after this step, from 0."""
        return (step + 1) % self.look_steps == 0

    def look(self, *flags: bool, advice: str) -> list[bool]:
        """Read what the device has computed, and return which flags any rank has set.

        Raises an error on every rank if a step was not finite: no checkpoint is written after that.
        """
        numbers = torch.cat((self._first_bad[None].to(self._sums), self._sums)).cpu().tolist()
        first_bad, self.last = int(numbers[0]), numbers[1:]
        found = self.processes.any(first_bad >= 0, *flags)
        if found[0]:
            first = f"step {first_bad + 1}" if first_bad >= 0 else "a step of another process"
            raise TrainingError(f"The loss is not finite in epoch {self.state.epoch}, {first}.", advice)
        return found[1:]

    def totals(self) -> list[float]:
        """Return the sums over all steps of this epoch and all ranks."""
        return self.processes.sum(self._sums).tolist()
