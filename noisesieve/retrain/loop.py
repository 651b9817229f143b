"""Consistency training: cross-entropy on clean rows, and on corrupted ones agreement of two views of the same picture.

Randomness is a function of (seed, epoch, step, rank): a run that resumes after any epoch ends in the same bits.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from noisesieve.errors import Stopped, TrainingError
from noisesieve.learn.augment import augment
from noisesieve.learn.backbones import Network
from noisesieve.learn.checkpoint import Keeper
from noisesieve.learn.feed import Feed, make_deterministic
from noisesieve.learn.lesson import generator, shuffled_batches
from noisesieve.learn.pretrained import Statistics
from noisesieve.learn.score import mean_probabilities, score_batch
from noisesieve.learn.state import State, fresh
from noisesieve.learn.world import World
from noisesieve.records import Pixels
from noisesieve.retrain.losses import disagreement
from noisesieve.retrain.plan import RetrainRecipe
from noisesieve.retrain.strong import strong
from noisesieve.watch import Stop, Watcher

SAVE_SECONDS = 300.0  # a long epoch is saved on the way
LR_END = 0.01  # share of the rate that the cosine ends with


@dataclass(frozen=True)
class Material:
    """What there is to learn from, by readable row."""

    pixels: Pixels
    labels: Tensor  # (N,) int64: of the clean rows the label that counts; of others anything
    clean: Tensor  # rows whose label is learnt
    corrupted: Tensor  # rows of which only the picture is
    classes: int
    statistics: Statistics | None = None  # of the pictures, as the weights want them; None: of these
    initial: dict[str, Tensor] | None = None  # weights to start from


@dataclass(frozen=True)
class Exam:
    """Pictures with labels that are right, never learnt from."""

    pixels: Pixels
    labels: Tensor


@dataclass(frozen=True)
class Taught:
    """A finished retraining."""

    state: State
    history: list[dict[str, Any]]


class Retraining:
    """One retraining. `run` reads in order; everything else is a step of it."""

    def __init__(
        self,
        material: Material,
        recipe: RetrainRecipe,
        *,
        exam: Exam | None,
        name: str,
        world: World,
        watcher: Watcher,
        checkpoints: Keeper | None,
        stop: Stop,
    ) -> None:
        make_deterministic(world.device)
        self.material, self.recipe, self.exam, self.name = material, recipe, exam, name
        self.world, self.watcher, self.checkpoints, self.stop = world, watcher, checkpoints, stop
        self.feed = Feed(material.pixels, world.device, statistics=material.statistics)
        statistics = self.feed.mean.tolist(), self.feed.std.tolist()
        self.exam_feed = None if exam is None else Feed(exam.pixels, world.device, statistics=statistics)
        self.state = fresh(recipe.network, rows=len(material.labels), classes=material.classes, world=world)
        self.state.mean, self.state.std = statistics
        self.stopping = self.saving = False  # what the ranks agreed on in the last step
        self.saved_at = time.monotonic()
        if material.initial is not None:
            self.state.model.load_state_dict(material.initial)
            self.state.average.load_state_dict(material.initial)

    def run(self) -> Taught:
        """Train until the last epoch; from the last checkpoint where there is one."""
        state, recipe = self.state, self.recipe
        if self.checkpoints is not None and (found := self.checkpoints.latest()) is not None:
            state.restore(*found)
            self.watcher.note(f"Resuming {self.name} in epoch {state.epoch}.")
        rows = len(self.material.clean)
        self.watcher.stage(self.name, recipe.epochs * rows)
        self.watcher.advance((state.epoch - 1) * rows)
        while state.epoch <= recipe.epochs:
            facts = self.train_epoch()
            self.save()  # a stop in the exam costs no training
            facts["test_accuracy"] = self.accuracy()
            state.history = [*state.history, facts]
            state.epoch, state.step, state.epoch_facts = state.epoch + 1, 0, {}
            self.save()
        self.watcher.finish()
        return Taught(state, state.history)

    def learning_rate(self, now: float) -> float:
        """The rate after `now` epochs: a rise, then a cosine."""
        recipe = self.recipe
        lr, rise = recipe.network.lr, recipe.warmup_epochs
        if now < rise:
            return lr * (now + 0.01) / (rise + 0.01)
        rest = (now - rise) / max(1e-9, recipe.epochs - rise)
        return lr * (LR_END + (1 - LR_END) * (1 + math.cos(math.pi * min(1.0, rest))) / 2)

    def train_epoch(self) -> dict[str, Any]:
        """One pass over the clean rows, corrupted ones beside them."""
        state, recipe, start = self.state, self.recipe, time.monotonic()
        seed, size = recipe.network.seed, recipe.network.batch_size
        clean, corrupted = self.material.clean, self.material.corrupted
        nobody = clean.new_zeros(0)
        batches = [
            clean[b] for b in shuffled_batches(len(clean), nobody, size=size, generator=generator(seed, state.epoch, 0))
        ]
        beside = self._beside(corrupted, len(batches))
        teacher = self._teacher()
        totals = state.epoch_facts = state.epoch_facts or {"loss": 0.0, "consistency": 0.0, "seconds": 0.0}
        mine = [self._mine(b) for b in batches]
        aside = [self._mine(b) for b in beside]
        first = state.step
        pictures = zip(self.feed.batches(mine[first:]), self._pictures(aside[first:]), strict=True)
        for step, (images, others) in enumerate(pictures, first):
            rate = self.learning_rate(state.epoch - 1 + step / len(batches))
            losses = self._step(step, rate, batches[step], mine[step], images, beside[step], others, teacher)
            for key, value in zip(("loss", "consistency"), losses, strict=True):
                totals[key] += value / len(batches)
            state.update_average(len(batches), recipe.network.ema_epochs)
            state.step += 1
            totals["seconds"], start = totals["seconds"] + time.monotonic() - start, time.monotonic()
            self.watcher.advance(
                len(batches[step]), phase=self.name, epoch=state.epoch, epochs=recipe.epochs, loss=losses[0]
            )
            if self.stopping:
                self.save()
                raise self.stop() or Stopped("Another rank was asked to stop.", exit_code=143)
            if self.saving:
                self.save()
        state.parked = {}
        seen = sum(len(b) for b in batches) + 2 * sum(len(b) for b in beside)
        seconds = totals["seconds"]
        return {
            "phase": self.name,
            "epoch": state.epoch,
            "learning_rate": self.learning_rate(state.epoch - 1 / len(batches)),
            "train_loss": totals["loss"],
            "consistency_loss": totals["consistency"] if recipe.unlabelled_batch else None,
            "images": seen,
            "seconds": seconds,
            "images_per_second": seen / max(1e-9, seconds),
        }

    def _beside(self, corrupted: Tensor, steps: int) -> list[Tensor]:
        """The corrupted rows that accompany each step: one shuffled round after the other."""
        size = self.recipe.unlabelled_batch if len(corrupted) else 0
        if size == 0:
            return [corrupted[:0]] * steps
        rounds = -(-steps * size // len(corrupted))
        dice = generator(self.recipe.network.seed, self.state.epoch, 0, 1)
        order = torch.cat([torch.randperm(len(corrupted), generator=dice) for _ in range(rounds)])
        return list(corrupted[order[: steps * size]].split(size))

    def _pictures(self, batches: list[Tensor]) -> Any:
        """Their pictures; None where there are none."""
        if not any(len(batch) for batch in batches):
            return [None] * len(batches)
        return self.feed.batches(batches)

    def _mine(self, batch: Tensor) -> Tensor:
        """This rank's part; a rank without a row runs one with weight zero."""
        part = batch[self.world.rank :: self.world.size]
        return part if len(part) else batch[:1]

    def _teacher(self) -> Network:
        """Whose word on the plain view is the target."""
        if self.recipe.target == "ema":
            return self.state.average
        if self.recipe.target == "epoch-start":
            teacher = copy.deepcopy(self.state.model).requires_grad_(False)
            if self.state.step and self.state.parked:  # resumed within the epoch
                teacher.load_state_dict(self.state.parked)
            self.state.parked = {name: value.clone() for name, value in teacher.state_dict().items()}
            return teacher
        return self.state.model

    def save(self) -> None:
        """Write a checkpoint, on rank 0; BatchNorm's statistics are then the same on all."""
        self.saved_at, self.saving = time.monotonic(), False
        self.world.mean_(self.state.norm_buffers())
        if self.checkpoints is not None and self.world.leads:
            state = self.state
            self.checkpoints.save(state.updates * 2 + (state.step == 0), *state.to_checkpoint())

    def _step(
        self,
        step: int,
        rate: float,
        batch: Tensor,
        mine: Tensor,
        images: Tensor,
        beside: Tensor,
        others: Tensor | None,
        teacher: Network,
    ) -> tuple[float, float]:
        """One update: the losses, over all ranks."""
        state, recipe, world = self.state, self.recipe, self.world
        flip, scaler = bool(state.flip), state.precision.scaler
        dice = generator(recipe.network.seed, state.epoch, step + 1, world.rank)
        views = [self.feed.normalize(augment(images, dice, flip=flip))]
        target = None
        if others is not None:
            with torch.no_grad(), state.precision.autocast():
                target = teacher.eval()(self.feed.normalize(augment(others, dice, flip=flip)))
            views.append(self.feed.normalize(strong(others, dice, flip=flip, policy=recipe.policy)))
        state.model.train()
        with state.precision.autocast():
            logits = state.model(torch.cat(views))
        labels = self.material.labels[mine].to(world.device)
        counted = float(world.rank < len(batch))
        loss = cross_entropy(logits[: len(images)], labels, reduction="sum") / len(batch) * counted
        consistency = loss.new_zeros(())
        if target is not None:
            counted = float(world.rank < len(beside))
            consistency = disagreement(logits[len(images) :], target).sum() / len(beside) * counted
        for group in state.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        state.optimizer.zero_grad()
        scaler.scale(loss + recipe.weight * consistency).backward()
        parameters = list(state.model.parameters())
        signals = (float(self.stop() is not None), float(time.monotonic() - self.saved_at > SAVE_SECONDS))
        said = (float(loss.detach()), float(consistency.detach()), *signals)
        *losses, stopping, saving = world.add_gradients(parameters, said)
        self.stopping, self.saving = stopping > 0, saving > 0
        scaler.unscale_(state.optimizer)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, recipe.network.clip_norm))
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
        """Of the averaged weights on the exam; None where there is none."""
        if self.exam is None or self.exam_feed is None:
            return None
        stop = self.stop if self.world.size == 1 else _never  # several ranks stop at a training step, together
        probs = examine(self.state.average, self.exam_feed, flip=bool(self.state.flip), state=self.state, stop=stop)
        return float((probs.argmax(dim=1) == self.exam.labels).double().mean())


def _never() -> None:
    """Nobody asks."""


def examine(
    network: Network, feed: Feed, *, flip: bool, state: State, stop: Callable[[], Exception | None] = lambda: None
) -> Tensor:
    """Class probabilities (N, K) of all pictures of a feed."""
    network.eval()
    found = []
    with torch.inference_mode():
        for images in feed.batches(list(torch.arange(len(feed)).split(score_batch(feed.size)))):
            plain = feed.normalize(images)
            found.append(mean_probabilities(network, [plain, plain.flip(3)] if flip else [plain], state.precision))
            if (asked := stop()) is not None:
                raise asked
    return torch.cat(found).clone()
