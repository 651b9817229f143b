"""The alternate search: train on the rows that passed, score every row, sieve again.

Randomness is a function of (seed, epoch, step), never of what ran before: a run that resumes from any step
ends in the same bits as one that was never disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from noisesieve.errors import Stopped, TrainingError
from noisesieve.learn import opinion, warmup
from noisesieve.learn.augment import augment, mix
from noisesieve.learn.checkpoint import Keeper
from noisesieve.learn.feed import Feed, make_deterministic
from noisesieve.learn.journal import Journal
from noisesieve.learn.lesson import Lesson, batches_of, generator
from noisesieve.learn.losses import mixed_loss
from noisesieve.learn.pretrained import statistics_of
from noisesieve.learn.schedule import Timeline
from noisesieve.learn.score import Scorer
from noisesieve.learn.state import State, fresh
from noisesieve.learn.world import World
from noisesieve.records import Scores
from noisesieve.settings import Recipe
from noisesieve.sieve.formulas import margin, undecided
from noisesieve.watch import Watcher

SAVE_SECONDS = 300.0  # a long epoch is saved on the way
SKIPPED_SHARE = 0.05  # of an epoch's batches: more are worth a warning


class Loop:
    """One training run. `run` reads in order; everything else is a step of it."""

    def __init__(
        self,
        lesson: Lesson,
        recipe: Recipe,
        *,
        world: World,
        watcher: Watcher,
        checkpoints: Keeper | None,
        stop: Callable[[], Stopped | None],
        observe: Callable[[Tensor, Tensor], None] | None = None,  # logits (B, K) and rows of every training step
    ) -> None:
        make_deterministic(world.device)
        self.recipe, self.world, self.watcher, self.checkpoints, self.stop = recipe, world, watcher, checkpoints, stop
        self.labels, self.trusted, self.rows = lesson.labels, lesson.trusted, len(lesson.labels)
        self.aside, self.observe = lesson.aside, observe
        self.feed = Feed(lesson.pixels, world.device, statistics=statistics_of(recipe.weights, recipe.backbone))
        self.scorer = Scorer(self.feed, world, lesson.classes, self.pause)
        self.prior = lesson.prior(balanced=recipe.balanced)
        self.device_prior = self.prior.float().to(world.device)  # Metal has no float64
        self.held_out = self.labels.new_zeros(0)
        if recipe.adaptive_warmup or recipe.flip is None:
            self.held_out = warmup.held_out_rows(self.labels, seed=recipe.seed)
        self.state = fresh(recipe, rows=self.rows, classes=lesson.classes, world=world, weights=lesson.weights)
        self.state.mean, self.state.std = self.feed.mean.tolist(), self.feed.std.tolist()
        if len(self.held_out) == 0:  # nobody to ask: the full warm-up, and no flips unless asked for
            self.state.warmup = recipe.warmup_epochs
            self.state.flip = bool(recipe.flip)
        self.journal = Journal(watcher)
        self.resume_point: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self.saved_at = time.monotonic()

    @property
    def timeline(self) -> Timeline:
        """The schedule, with the longest warm-up while its end is unknown."""
        known = self.state.warmup
        return Timeline(self.recipe, self.recipe.warmup_epochs if known is None else known)

    @property
    def images(self) -> int:
        """That an epoch sees, about."""
        return self.recipe.epoch_steps * self.recipe.batch_size if self.recipe.epoch_steps else self.rows

    def run(self) -> tuple[State, Scores]:
        """Train, score and sieve until the last epoch; from the last checkpoint where there is one."""
        state = self.state
        if self.checkpoints is not None and (found := self.checkpoints.latest()) is not None:
            state.restore(*found)
            self.watcher.note(f"Resuming in epoch {state.epoch}, step {state.step}.")
        self.watcher.stage("training", self.timeline.epochs * self.images)
        self.watcher.advance((state.epoch - 1) * self.images)
        while state.epoch <= self.timeline.epochs:
            if self.timeline.phase(state.epoch) == "settle" and not state.parked:
                state.park()
            with self.journal.timed("train"):
                self.train_epoch()
            with self.journal.timed("score"):
                kept, flagged, edge = self.score_epoch()
            steps = len(self.epoch_batches())
            self.journal.record(state, self.timeline, steps=steps, kept=kept, flagged=flagged, undecided=edge)
            state.epoch, state.step, state.epoch_facts = state.epoch + 1, 0, {}
            self.save()
        self.watcher.finish()
        return state, self.scores()

    def scores(self) -> Scores:
        """What the last epochs say of every row."""
        state, timeline = self.state, self.timeline
        assert state.prob_sum is not None
        sieve_epochs = max(1, timeline.epochs - timeline.sieve_start + 1)
        mean, weight = state.prob_sum / state.prob_count, self.recipe.opinion_weight
        probs, torn = opinion.combine(state, mean, self.labels, weight)
        return Scores(
            probs=probs.numpy(),
            flagged_epochs=(state.dropped.double() / sieve_epochs).numpy(),
            prior=self.prior.numpy(),
            beta=timeline.beta(timeline.epochs),
            history=state.history,
            facts={
                "warmup_epochs": timeline.warmup,
                "epochs": timeline.epochs,
                "sieve_start": timeline.sieve_start,
                "flip": bool(state.flip),
                "held_out": len(self.held_out),
                "held_out_agreement": state.agreement,
                "loop_eps": state.loop_eps or self.recipe.loop_eps,
            },
            torn=None if torn is None else torn.numpy(),
            course=None if state.course is None else state.course.numpy(),
            saved=None if state.alone is None else state.alone.numpy(),
            division=None if state.division is None else state.division.numpy(),
        )

    # Training: one epoch over the rows that passed the sieve.

    def train_epoch(self) -> None:
        """The steps of this epoch that are still to do."""
        state = self.state
        batches = self.epoch_batches()
        state.epoch_facts = state.epoch_facts or {"loss": 0.0, "kept": 0, "skipped": 0}
        state.model.train()
        todo = [self.batch_rows(batch) for batch in batches[state.step :]]
        for images, (kept, mine) in zip(self.feed.batches([mine for _, mine in todo]), todo, strict=True):
            stopping, saving = self.train_step(images, mine, kept, len(batches))
            state.step += 1
            self.journal.show(state, self.timeline, len(batches[state.step - 1]), self.images)
            if stopping:
                self.halt()
            if saving:
                self.save()
        self.world.mean_(state.norm_buffers())
        if state.epoch_facts["skipped"] > SKIPPED_SHARE * len(batches):
            skipped = int(state.epoch_facts["skipped"])
            self.watcher.warn(f"Epoch {state.epoch}: {skipped} of {len(batches)} batches had every row sieved out.")

    def epoch_batches(self) -> list[Tensor]:
        """This epoch's rows in batches; the warm-up leaves the held-out part aside."""
        epoch = self.state.epoch
        aside = torch.cat((self.aside, self.held_out)) if self.timeline.phase(epoch) == "warm-up" else self.aside
        return batches_of(self.labels, aside, self.recipe, generator(self.recipe.seed, epoch, 0))

    def batch_rows(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of a batch that take part, over all ranks and on this one."""
        kept = batch if self.recipe.score_pass == "train" else batch[self.state.keep[batch]]
        mine = kept[self.world.rank :: self.world.size]
        return kept, mine if len(mine) else kept[:1]  # a rank without a row runs one with weight zero

    def train_step(self, images: Tensor, mine: Tensor, kept: Tensor, steps: int) -> tuple[bool, bool]:
        """One update; then whether to stop and whether to save. A batch without a kept row changes nothing."""
        state, recipe, world, facts = self.state, self.recipe, self.world, self.state.epoch_facts
        count = int(state.keep[kept].sum())
        if count == 0:
            facts["skipped"] += 1
            return world.size == 1 and self.stop() is not None, False
        beta = self.timeline.beta(state.epoch)
        for group in state.optimizer.param_groups:
            group["lr"] = group["share"] * self.timeline.learning_rate(state.epoch, state.step / steps)
        dice = generator(recipe.seed, state.epoch, state.step + 1, world.rank)
        views = self.feed.normalize(augment(images, dice, flip=bool(state.flip)))
        partner, share = torch.arange(len(mine)), 1.0
        if recipe.mixup:  # `mine` holds kept rows only: a dropped one takes no part in a mix
            views, partner, share = mix(views, dice, recipe.mixup)
        with state.precision.autocast():
            logits = state.model(views)
        weight = state.keep[mine].float() / count * (world.rank < len(kept))
        labels = self.labels[mine].to(world.device)
        each = mixed_loss(logits, labels, labels[partner.to(world.device)], share, self.device_prior, beta)
        loss = (each * weight.to(world.device)).sum()
        scaler, parameters = state.precision.scaler, list(state.model.parameters())
        state.optimizer.zero_grad()
        scaler.scale(loss).backward()
        signals = (self.stop() is not None, time.monotonic() - self.saved_at > SAVE_SECONDS)
        total, stopping, saving = world.add_gradients(parameters, (float(loss.detach()), *map(float, signals)))
        scaler.unscale_(state.optimizer)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, recipe.clip_norm))
        self.require_finite(total if scaler.is_enabled() else total + norm)  # a scaler expects infinite norms
        scaler.step(state.optimizer)
        scaler.update()
        state.updates += 1
        state.update_average(steps, recipe.ema_epochs)
        facts["loss"] += total * count
        facts["kept"] += count
        if recipe.score_pass == "train":
            self.note_train_scores(logits, kept, mine)
        if self.observe is not None:
            self.observe(logits.detach(), mine)
        return stopping > 0, saving > 0

    def require_finite(self, value: float) -> None:
        """Stop with a diagnosis before a broken number reaches the weights."""
        if not abs(value) < float("inf"):
            raise TrainingError(
                f"The loss is not finite in epoch {self.state.epoch}, step {self.state.step + 1}.",
                "Lower --lr or --beta, or lengthen --warmup-epochs. The last checkpoint is kept.",
            )

    # Between epochs: what the warm-up's held-out rows say; later the scores of all rows, and the sieve.

    def score_epoch(self) -> tuple[int, int, int]:
        """Close the epoch: how many rows it kept, how many are flagged now, how many lie on the edge.

        Asked to stop on the way, a run resumes from before it.
        """
        state = self.state
        self.resume_point = state.to_checkpoint()
        phase = self.timeline.phase(state.epoch)
        if phase == "warm-up" and len(self.held_out):
            warmup.watch(state, self.recipe, self.scorer, self.held_out, self.labels[self.held_out])
            if self.observe is not None:  # or an observer would never see these rows early
                self.observe(self.scorer.score(state, self.held_out).log(), self.held_out)
        if phase == "settle":
            opinion.note(state, self.scorer, last=self.timeline.settled)
        timeline = self.timeline  # the warm-up's end may be known only now
        kept = int(state.keep.sum())
        if state.epoch >= timeline.sieve_start:
            state.dropped = state.dropped + (~state.keep).long()
        last, everything = state.epoch == timeline.epochs, torch.arange(self.rows)
        margins = None
        sieved = state.epoch >= timeline.sieve_start or timeline.sieve_start > timeline.epochs  # the latter: never
        counts = sieved and state.epoch > timeline.epochs - self.recipe.average_epochs
        if last or (counts and self.recipe.score_pass == "eval"):
            probs = self.scorer.score(state, everything)
            state.prob_sum = probs if state.prob_sum is None else state.prob_sum + probs
            state.prob_count += 1
            state.alone = opinion.alone(probs, self.labels, self.recipe.sieve_eps) if last else None
            margins = self.margins_of(probs, everything)
        elif timeline.scores_after(state.epoch) and self.recipe.score_pass == "eval":
            if state.loop_eps is None:  # the first scores also choose the sieve's own floor
                probs = self.scorer.score(state, everything)
                state.loop_eps = opinion.choose_eps(state, probs, self.labels, self.recipe)
                margins = self.margins_of(probs, everything)
            else:
                margins = self.scorer.score(state, everything, keep=self.margins_of)
        if margins is not None:
            state.pending = margins < 0
            state.note_margins(margins)
        if state.epoch == self.recipe.divide_at and state.pending is not None:
            state.division = state.pending | self.trusted
        flagged = 0 if state.pending is None else int((~state.pending).sum())
        if state.pending is not None and not last:
            self.sieve(state.pending)
        state.pending, self.resume_point = None, None
        if phase == "settle" and state.epoch == timeline.settled:
            state.unpark()  # last: until here a stop resumes from before the scoring
        return kept, flagged, 0 if margins is None else undecided(margins)

    def margins_of(self, probs: Tensor, rows: Tensor) -> Tensor:
        """All that the loop needs of the probabilities: (B,) instead of (B, K)."""
        return margin(probs, self.labels[rows], self.state.loop_eps or self.recipe.loop_eps)

    def sieve(self, clean: Tensor) -> None:
        """Set v for the next epoch; dropping everything is a diagnosis, not a verdict."""
        state = self.state
        if state.epoch + 1 < self.timeline.sieve_start:
            return
        clean = clean | self.trusted
        if not clean.any():
            raise TrainingError(
                f"Every row was sieved out after epoch {state.epoch}: the network predicts no given label.",
                "Lengthen --warmup-epochs, lower --beta, or check that labels and images belong together.",
            )
        state.keep = clean

    def note_train_scores(self, logits: Tensor, batch: Tensor, mine: Tensor) -> None:
        """--score-pass train: the augmented batch itself says v for the next epoch, as in the authors' code."""
        state = self.state
        gaps = self.margins_of(logits.detach().cpu().double().softmax(dim=1), mine)
        clean = torch.zeros(self.rows)
        clean[mine] = (gaps < 0).float() * (self.world.rank < len(batch))
        pending = state.keep.clone() if state.pending is None else state.pending  # rows in no batch keep their v
        pending[batch] = self.world.sum(clean[batch]) > 0
        state.pending = pending

    # Checkpoints.

    def save(self) -> None:
        """Write a checkpoint, on rank 0; BatchNorm's statistics are then the same on all."""
        self.saved_at = time.monotonic()
        self.world.mean_(self.state.norm_buffers())
        tensors, facts = self.resume_point or self.state.to_checkpoint()
        if self.checkpoints is not None and self.world.leads:
            self.checkpoints.save(facts["updates"] * 2 + (facts["step"] == 0), tensors, facts)

    def pause(self) -> None:
        """Between two batches of scoring: stop if asked to. Several ranks stop at a training step, together."""
        if self.world.size == 1 and self.stop() is not None:
            self.halt()

    def halt(self) -> NoReturn:
        """Leave a checkpoint and stop as asked."""
        self.save()
        raise self.stop() or Stopped("Another rank was asked to stop.", exit_code=143)
