"""Consistency training: cross-entropy on clean rows, and for corrupted rows the agreement of two views of an image.

Random numbers depend only on (seed, epoch, step), so a resumed run gives the same bits.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from noisesieve.core.errors import Stopped
from noisesieve.learn.augment import Draws, augment, draw
from noisesieve.learn.batch_loader import BatchLoader, Columns, StepPlan
from noisesieve.learn.checkpoint import CheckpointStore
from noisesieve.learn.device import prepare_device
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.networks.depths import Network
from noisesieve.learn.recipes import RetrainRecipe
from noisesieve.learn.schedule import half_cosine
from noisesieve.learn.score import predict
from noisesieve.learn.state import TrainingState, initial_state
from noisesieve.learn.training_data import make_generator, shuffled_batches
from noisesieve.learn.update import Updater
from noisesieve.retrain.data import LabelledTestSet, RetrainData
from noisesieve.retrain.strong_augment import draw_policies, draw_strong, strong_augment

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
        prepare_device(processes.device, deterministic=session.deterministic)
        self.data, self.recipe, self.test_set, self.name = data, recipe, test_set, name
        self.session, self.checkpoints = session, checkpoints
        self.loader = BatchLoader(data.pixels, processes.device, statistics=data.statistics)
        statistics = self.loader.statistics
        self.test_loader = None
        if test_set is not None:
            self.test_loader = BatchLoader(test_set.pixels, processes.device, statistics=statistics)
        self.state = initial_state(recipe, rows=len(data.labels), classes=data.classes, processes=processes)
        self.state.mean, self.state.std = statistics
        self.saved_at = time.monotonic()
        if data.initial is not None:
            self.state.model.load_state_dict(data.initial)
            self.state.average.load_state_dict(data.initial)
        self.updater = Updater(
            self.state,
            processes,
            image_size=recipe.image_size,
            clip_norm=recipe.clip_norm,
            ema_epochs=recipe.ema_epochs,
        )

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
        self.updater.end()
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
        first, steps = state.step, len(batches)
        self.updater.begin([totals["loss"], totals["consistency"]])
        labelled = self.loader.steps(self._plans(batches, (recipe.labelled_view,), 1))
        others = self.loader.steps(self._plans(unlabelled, ("weak", "strong"), 2))
        for step, (own, other) in enumerate(zip(labelled, others, strict=True), first):
            rate = self.learning_rate(state.epoch - 1 + step / steps)
            self._step(rate, own, other, teacher, steps)
            state.step += 1
            totals["seconds"], start = totals["seconds"] + time.monotonic() - start, time.monotonic()
            if self.updater.looks_after(step):
                self._look()
            shown = {"phase": self.name, "epoch": state.epoch, "epochs": recipe.epochs}
            self.session.advance(len(batches[step]), **shown, loss=self.updater.last[0] * steps / (step + 1))
        self._look()
        totals["loss"], totals["consistency"] = self.updater.totals()
        self.processes.mean_(state.norm_buffers())
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
        """Write a checkpoint: every rank its part."""
        self.saved_at, state = time.monotonic(), self.state
        if state.epoch_facts:
            state.epoch_facts["loss"], state.epoch_facts["consistency"] = self.updater.totals()
        if self.checkpoints is not None:
            self.checkpoints.save(state.updates * 2 + (state.step == 0), state.to_checkpoint(self.processes))

    def _plans(self, batches: list[Tensor], views: tuple[str, ...], number: int) -> Iterator[StepPlan]:
        """Plan the remaining steps of an epoch: every row counts the same, and has these views, weak or strong.

        Draws are made for the whole batch, so that the number of ranks changes rounding only.
        """
        state, flip, size = self.state, bool(self.state.flip), self.loader.size
        for step, rows in enumerate(batches[state.step :], state.step):
            count, own = len(rows), self.processes.places(len(rows))
            generator = make_generator(self.recipe.seed, state.epoch, step + 1, number)
            columns = {"label": self.data.labels[rows], "weight": torch.full((count,), 1 / max(1, count))}
            policies: tuple[tuple[int, int], ...] = ()
            for view in views:
                if view == "strong":
                    columns |= draw_strong(count, size, generator, flip=flip, prefix=view)
                    policies = draw_policies(count, own, generator)
                else:
                    columns |= draw(count, size, generator, flip=flip).columns(view)
            yield StepPlan.of(rows, self.processes, columns, kept=count, policies=policies)

    def _step(
        self,
        rate: float,
        labelled: tuple[StepPlan, Tensor, Columns],
        unlabelled: tuple[StepPlan, Tensor, Columns],
        teacher: Network,
        steps: int,
    ) -> None:
        """Update the weights once: cross-entropy of labelled images, and the agreement of two views of the others."""
        state, recipe = self.state, self.recipe
        views, target, others = [self._view(labelled, recipe.labelled_view)], None, len(unlabelled[1]) > 0
        if others:
            plain = self._view(unlabelled, "weak")
            views.append(self._view(unlabelled, "strong"))
            if recipe.target == "batch":
                views.append(plain)
            else:
                with torch.no_grad(), state.precision.autocast():
                    target = teacher.eval()(plain)
        state.model.train()
        with state.precision.autocast():
            logits, *views_of_others = self.updater.module(torch.cat(views)).split([len(view) for view in views])
        columns = labelled[2]
        each = cross_entropy(logits.float(), columns["label"].long(), reduction="none")
        loss = (each * columns["weight"].float()).sum()
        consistency = torch.zeros_like(loss)
        if others:
            goal = views_of_others[1] if target is None else target
            consistency = (consistency_loss(views_of_others[0], goal) * unlabelled[2]["weight"].float()).sum()
        addends = (loss / steps, consistency / steps)
        self.updater.step(loss + recipe.weight * consistency, addends, rate=rate, steps=steps)

    def _view(self, step: tuple[StepPlan, Tensor, Columns], kind: str) -> Tensor:
        """Return an augmented view of a step's images."""
        plan, images, columns = step
        if kind == "strong":
            images = strong_augment(images, columns, plan.policies, policy=self.recipe.policy, prefix=kind)
        else:
            images = augment(images, Draws.of(columns, kind))
        return self.loader.normalize(images)

    def _look(self) -> None:
        """Read what the device has computed since the last look; save or stop if any rank was asked to."""
        timed = time.monotonic() - self.saved_at > SAVE_SECONDS
        stopping, saving = self.updater.look(self.session.stop() is not None, timed, advice="Lower --lr or --weight.")
        if stopping or saving:
            self.save()
        if stopping:
            raise self.session.stop() or Stopped("Another rank was asked to stop.", exit_code=143)

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
