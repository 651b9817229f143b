"""Consistency training: cross-entropy on clean rows, and for corrupted rows the agreement of two views of an image.

Random numbers depend only on (seed, epoch, step, rank), so a resumed run gives the same bits.
"""

from __future__ import annotations

import copy
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from noisesieve.core.errors import Stopped, TrainingError
from noisesieve.learn.augment import augment
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.checkpoint import CheckpointStore
from noisesieve.learn.device import make_deterministic
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.networks.depths import Network
from noisesieve.learn.recipes import RetrainRecipe
from noisesieve.learn.schedule import half_cosine
from noisesieve.learn.score import predict
from noisesieve.learn.state import TrainingState, initial_state
from noisesieve.learn.training_data import make_generator, shuffled_batches
from noisesieve.retrain.data import LabelledTestSet, RetrainData
from noisesieve.retrain.strong_augment import strong_augment

SAVE_SECONDS = 300.0  # time between two checkpoints within a long epoch


@dataclass(frozen=True)
class RetrainEpochRow:
    """One row of the history of a retraining."""

    phase: str
    epoch: int
    learning_rate: float
    train_loss: float
    consistency_loss: float | None
    images: int
    seconds: float
    images_per_second: float
    test_accuracy: float | None


@dataclass(frozen=True)
class RetrainResult:
    """A finished retraining."""

    state: TrainingState
    history: list[RetrainEpochRow]


@dataclass(frozen=True)
class StepBatch:
    """The rows of one training step, over all ranks and on this one, and their images."""

    rows: Tensor  # clean rows, over all ranks
    mine: Tensor  # clean rows of this rank
    images: Tensor  # of `mine`
    unlabelled: Tensor  # corrupted rows, over all ranks
    others: Tensor | None  # images of this rank's corrupted rows


class RetrainLoop:
    """One retraining. Start with `run`: the other methods are its steps."""

    def __init__(
        self,
        data: RetrainData,
        recipe: RetrainRecipe,
        session: TrainingSession,
        *,
        name: str,
        test_set: LabelledTestSet | None,
        checkpoints: CheckpointStore | None,
    ) -> None:
        processes, self.processes = session.processes, session.processes
        make_deterministic(processes.device)
        self.data, self.recipe, self.test_set, self.name = data, recipe, test_set, name
        self.session, self.checkpoints = session, checkpoints
        self.loader = BatchLoader(data.pixels, processes.device, statistics=data.statistics)
        statistics = self.loader.mean.tolist(), self.loader.std.tolist()
        self.test_loader = None
        if test_set is not None:
            self.test_loader = BatchLoader(test_set.pixels, processes.device, statistics=statistics)
        self.state = initial_state(recipe, rows=len(data.labels), classes=data.classes, processes=processes)
        self.state.mean, self.state.std = statistics
        self.stopping = self.saving = False  # as the ranks agreed in the last step
        self.saved_at = time.monotonic()
        if data.initial is not None:
            self.state.model.load_state_dict(data.initial)
            self.state.average.load_state_dict(data.initial)

    def run(self) -> RetrainResult:
        """Train until the last epoch, starting from the last checkpoint if there is one."""
        state, recipe = self.state, self.recipe
        if self.checkpoints is not None and (checkpoint := self.checkpoints.latest(len(self.data.labels))) is not None:
            state.restore(checkpoint)
            self.session.note(f"Resuming {self.name} in epoch {state.epoch}.")
        rows = len(self.data.clean)
        self.session.stage(self.name, recipe.epochs * rows)
        self.session.advance((state.epoch - 1) * rows, resumed=True)
        while state.epoch <= recipe.epochs:
            row = self.train_epoch()
            self.save()  # a stop during the test loses no training
            state.history = [*state.history, asdict(replace(row, test_accuracy=self.accuracy()))]
            state.epoch, state.step, state.epoch_facts = state.epoch + 1, 0, {}
            self.save()
        self.session.finish()
        return RetrainResult(state, [RetrainEpochRow(**row) for row in state.history])

    def learning_rate(self, now: float) -> float:
        """Return the learning rate after `now` epochs: a linear warm-up, then a cosine."""
        recipe = self.recipe
        lr, rise = recipe.lr, recipe.warmup_epochs
        if now < rise:
            return lr * (now + 0.01) / (rise + 0.01)
        rest = (now - rise) / max(1e-9, recipe.epochs - rise)
        return lr * (recipe.lr_end + (1 - recipe.lr_end) * half_cosine(min(1.0, rest)))

    def train_epoch(self) -> RetrainEpochRow:
        """Train one epoch over the clean rows, with corrupted rows in every step. Returns the row of the history."""
        state, recipe, start = self.state, self.recipe, time.monotonic()
        seed, size = recipe.seed, recipe.batch_size
        clean, corrupted = self.data.clean, self.data.corrupted
        none = clean.new_zeros(0)
        batches = [
            clean[b]
            for b in shuffled_batches(len(clean), none, size=size, generator=make_generator(seed, state.epoch, 0))
        ]
        unlabelled = self._unlabelled_batches(corrupted, len(batches))
        teacher = self._teacher()
        totals = state.epoch_facts = state.epoch_facts or {"loss": 0.0, "consistency": 0.0, "seconds": 0.0}
        mine = [self.processes.rows_of_rank(b) for b in batches]
        mine_unlabelled = [self.processes.rows_of_rank(b) for b in unlabelled]
        first = state.step
        loaded = zip(self.loader.batches(mine[first:]), self._images(mine_unlabelled[first:]), strict=True)
        for step, (images, others) in enumerate(loaded, first):
            rate = self.learning_rate(state.epoch - 1 + step / len(batches))
            batch = StepBatch(batches[step], mine[step], images, unlabelled[step], others)
            losses = self._step(step, rate, batch, teacher)
            for key, value in zip(("loss", "consistency"), losses, strict=True):
                totals[key] += value / len(batches)
            state.update_average(len(batches), recipe.ema_epochs)
            state.step += 1
            totals["seconds"], start = totals["seconds"] + time.monotonic() - start, time.monotonic()
            self.session.advance(
                len(batches[step]), phase=self.name, epoch=state.epoch, epochs=recipe.epochs, loss=losses[0]
            )
            if self.stopping:
                self.save()
                raise self.session.stop() or Stopped("Another rank was asked to stop.", exit_code=143)
            if self.saving:
                self.save()
        state.stashed = {}
        count = sum(len(b) for b in batches) + 2 * sum(len(b) for b in unlabelled)
        seconds = totals["seconds"]
        return RetrainEpochRow(
            phase=self.name,
            epoch=state.epoch,
            learning_rate=self.learning_rate(state.epoch - 1 / len(batches)),
            train_loss=totals["loss"],
            consistency_loss=totals["consistency"] if recipe.unlabelled_batch else None,
            images=count,
            seconds=seconds,
            images_per_second=count / max(1e-9, seconds),
            test_accuracy=None,
        )

    def _unlabelled_batches(self, corrupted: Tensor, steps: int) -> list[Tensor]:
        """Return the corrupted rows of each step: repeated shuffled passes over them."""
        size = self.recipe.unlabelled_batch if len(corrupted) else 0
        if size == 0:
            return [corrupted[:0]] * steps
        rounds = -(-steps * size // len(corrupted))
        generator = make_generator(self.recipe.seed, self.state.epoch, 0, 1)
        order = torch.cat([torch.randperm(len(corrupted), generator=generator) for _ in range(rounds)])
        return list(corrupted[order[: steps * size]].split(size))

    def _images(self, batches: list[Tensor]) -> Any:
        """Yield the images of batches; None if the batches are empty."""
        if not any(len(batch) for batch in batches):
            return [None] * len(batches)
        return self.loader.batches(batches)

    def _teacher(self) -> Network:
        """Return the network whose prediction on the plain view is the target."""
        if self.recipe.target == "ema":
            return self.state.average
        if self.recipe.target == "epoch-start":
            teacher = copy.deepcopy(self.state.model).requires_grad_(False)
            if self.state.step and self.state.stashed:  # resumed within the epoch
                teacher.load_state_dict(self.state.stashed)
            self.state.stashed = {name: value.clone() for name, value in teacher.state_dict().items()}
            return teacher
        return self.state.model

    def save(self) -> None:
        """Write a checkpoint, on rank 0. BatchNorm's statistics are averaged over the ranks first."""
        self.saved_at, self.saving = time.monotonic(), False
        self.processes.mean_(self.state.norm_buffers())
        if self.checkpoints is not None:
            state = self.state
            self.checkpoints.save(state.updates * 2 + (state.step == 0), state.to_checkpoint())

    def _step(self, step: int, rate: float, batch: StepBatch, teacher: Network) -> tuple[float, float]:
        """Update the weights once. Returns both losses, summed over the ranks."""
        images, others = batch.images, batch.others
        state, recipe, processes = self.state, self.recipe, self.processes
        flip, scaler = bool(state.flip), state.precision.scaler
        generator = make_generator(recipe.seed, state.epoch, step + 1, processes.rank)
        normalize, strong = self.loader.normalize, partial(strong_augment, flip=flip, policy=recipe.policy)
        weak = partial(augment, flip=flip)
        labelled_view = strong if recipe.labelled_view == "strong" else weak
        views, target = [normalize(labelled_view(images, generator))], None
        if others is not None:
            plain = normalize(weak(others, generator))
            views.append(normalize(strong(others, generator)))
            if recipe.target == "batch":
                views.append(plain)
            else:
                with torch.no_grad(), state.precision.autocast():
                    target = teacher.eval()(plain)
        state.model.train()
        with state.precision.autocast():
            logits, *views_of_others = state.model(torch.cat(views)).split([len(view) for view in views])
        labels = self.data.labels[batch.mine].to(processes.device)
        counted = float(processes.rank < len(batch.rows))
        loss = cross_entropy(logits, labels, reduction="sum") / len(batch.rows) * counted
        consistency = loss.new_zeros(())
        if others is not None:
            counted = float(processes.rank < len(batch.unlabelled))
            goal = views_of_others[1] if target is None else target
            consistency = consistency_loss(views_of_others[0], goal).sum() / len(batch.unlabelled) * counted
        for group in state.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        state.optimizer.zero_grad()
        scaler.scale(loss + recipe.weight * consistency).backward()
        parameters = list(state.model.parameters())
        signals = (float(self.session.stop() is not None), float(time.monotonic() - self.saved_at > SAVE_SECONDS))
        numbers = (float(loss.detach()), float(consistency.detach()), *signals)
        *losses, stopping, saving = processes.add_gradients(parameters, numbers)
        self.stopping, self.saving = stopping > 0, saving > 0
        scaler.unscale_(state.optimizer)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, recipe.clip_norm))
        total = sum(losses) + (0.0 if scaler.is_enabled() else norm)
        if not abs(total) < float("inf"):
            raise TrainingError(
                f"The loss is not finite in epoch {state.epoch}, step {step + 1}.", "Lower --lr or --weight."
            )
        scaler.step(state.optimizer)
        scaler.update()
        state.updates += 1
        return losses[0], losses[1]

    def accuracy(self) -> float | None:
        """Return the accuracy of the averaged weights on the test set; None if there is none."""
        if self.test_set is None or self.test_loader is None:
            return None

        def done(count: int) -> None:
            if self.processes.size == 1:  # several ranks stop only at a training step, together
                self.session.pause()

        probs = predict(self.state.average, self.test_loader, flip=bool(self.state.flip), done=done)
        return float((probs.argmax(dim=1) == self.test_set.labels).double().mean())


def consistency_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return KL(target || prediction), (B,), of the plain view's logits and the strongly augmented view's.

    The gradient flows through `logits` alone.
    """
    goal = torch.log_softmax(target.detach().float(), dim=1)
    log_probs = torch.log_softmax(logits.float(), dim=1)
    return (goal.exp() * (goal - log_probs)).sum(dim=1)
