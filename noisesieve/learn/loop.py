"""The training loop with the dynamic sieve (the paper's alternate search): train on the kept rows, score all, sieve.

Random numbers depend only on (seed, epoch, step), so a run that resumes from any step gives the same bits as one that
was never interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import NoReturn

import torch
from torch import Tensor

from noisesieve.core.errors import Stopped, TrainingError
from noisesieve.learn import second_opinion, warmup
from noisesieve.learn.augment import augment, mix
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.checkpoint import Checkpoint, CheckpointStore
from noisesieve.learn.device import make_deterministic
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.epoch_sieve import EpochSieve
from noisesieve.learn.evidence import EpochRow, TrainedScores, TrainingFacts
from noisesieve.learn.history import EpochTotals, epoch_row, progress_facts
from noisesieve.learn.losses import ENTROPY, Loss, entropy_loss, mixed_loss, training_loss
from noisesieve.learn.networks.pretrained import statistics_of
from noisesieve.learn.recipes import NetworkRecipe
from noisesieve.learn.schedule import Schedule
from noisesieve.learn.score import Scorer
from noisesieve.learn.state import TrainingState, initial_state
from noisesieve.learn.training_data import TrainingData, batches_of, make_generator

SAVE_SECONDS = 300.0  # time between two checkpoints within a long epoch
SKIPPED_SHARE = 0.05  # share of skipped batches in an epoch above which there is a warning


class Loop:
    """One training run. Start with `run`: the other methods are its steps."""

    def __init__(
        self,
        data: TrainingData,
        recipe: NetworkRecipe,
        session: TrainingSession,
        *,
        checkpoints: CheckpointStore | None,
        observe: Callable[[Tensor, Tensor], None] | None = None,  # logits (B, K) and rows of every training step
    ) -> None:
        device, self.processes = session.device, session.processes
        make_deterministic(device)
        self.recipe, self.session, self.checkpoints, self.observe = recipe, session, checkpoints, observe
        self.labels, self.trusted, self.rows = data.labels, data.trusted, len(data)
        self.score_only = data.score_only
        self.loader = BatchLoader(data.pixels, device, statistics=statistics_of(recipe.weights, recipe.backbone))
        self.scorer = Scorer(self.loader, self.processes, data.classes, self.pause)
        self.prior = data.prior(balanced=recipe.balanced)
        self.device_prior = self.prior.float().to(device)  # Metal has no float64
        self.held_out = self.labels.new_zeros(0)
        if recipe.adaptive_warmup or recipe.flip is None:
            self.held_out = warmup.held_out_rows(self.labels, seed=recipe.seed)
        self.state = initial_state(
            recipe, rows=self.rows, classes=data.classes, processes=self.processes, weights=data.weights
        )
        self.state.warmup = None if recipe.adaptive_warmup else recipe.warmup_epochs
        self.state.loop_eps = None if recipe.adaptive_eps else recipe.loop_eps
        self.state.mean, self.state.std = self.loader.mean.tolist(), self.loader.std.tolist()
        if len(self.held_out) == 0:  # nothing to decide from: the full warm-up, and no flips unless asked for
            self.state.warmup = recipe.warmup_epochs
            self.state.flip = bool(recipe.flip)
        self.sieve = EpochSieve(self.state, recipe, data, self.scorer, self.processes)
        self.resume_point: Checkpoint | None = None
        self.saved_at = time.monotonic()

    @property
    def schedule(self) -> Schedule:
        """The schedule, with the longest possible warm-up while its end is unknown."""
        return self.state.schedule(self.recipe)

    def run(self) -> tuple[TrainingState, TrainedScores]:
        """Train, score and sieve until the last epoch, starting from the last checkpoint if there is one."""
        state = self.state
        if self.checkpoints is not None and (checkpoint := self.checkpoints.latest(self.rows)) is not None:
            state.restore(checkpoint)
            self.session.note(f"Resuming in epoch {state.epoch}, step {state.step}.")
        images = self.recipe.images_per_epoch(self.rows)
        self.session.stage("training", self.schedule.epochs * images)
        self.session.advance((state.epoch - 1) * images, resumed=True)
        while state.epoch <= self.schedule.epochs:
            if self.schedule.phase(state.epoch) == "settle" and not state.stashed:
                state.stash_weights()
            self.train_epoch()
            start = time.monotonic()
            kept, flagged, unclear = self.score_epoch()
            steps = len(self.epoch_batches())
            row = epoch_row(
                state.epoch,
                self.schedule,
                EpochTotals(**state.epoch_facts),
                counts=(kept, flagged, unclear, steps),
                score_seconds=time.monotonic() - start,
            )
            state.history = [*state.history, asdict(row)]
            state.epoch, state.step, state.epoch_facts, state.prior = state.epoch + 1, 0, {}, None
            self.save()
        self.session.finish()
        return state, self.scores()

    def scores(self) -> TrainedScores:
        """Return the scores of every row, averaged over the last epochs and combined with the CE snapshot."""
        state, schedule = self.state, self.schedule
        assert state.prob_sum is not None
        sieve_epochs = max(1, schedule.epochs - schedule.sieve_start + 1)
        mean, mine = state.prob_sum.div_(state.prob_count), self.processes.part(torch.arange(self.rows))
        disagree = second_opinion.combine(state, mean, self.labels[mine], self.recipe.opinion_weight)
        has_snapshot, state.ce_snapshot = state.ce_snapshot is not None, None
        disagree, probs = self.processes.gather(disagree, self.rows), self.processes.gather_to_leader(mean, self.rows)
        return TrainedScores(
            probs=probs.numpy(),
            flagged_epochs=(state.dropped.double() / sieve_epochs).numpy(),
            prior=self.prior.numpy(),
            beta=schedule.beta(schedule.epochs),
            history=[EpochRow(**row) for row in state.history],
            facts=TrainingFacts(
                warmup_epochs=schedule.warmup,
                epochs=schedule.epochs,
                sieve_start=schedule.sieve_start,
                flip=bool(state.flip),
                held_out=len(self.held_out),
                held_out_agreement=state.agreement,
                held_out_accuracy=state.held_out_accuracy,
                loop_eps=state.loop_eps or self.recipe.loop_eps,
            ),
            disagree=disagree.numpy() if has_snapshot else None,
            margin_history=[margins.numpy() for margins in state.margin_history] or None,
            saved_model_scores=None if state.saved_model_scores is None else state.saved_model_scores.numpy(),
            held_out_accuracy=state.held_out_accuracy,
            early_clean=None if state.early_clean is None else state.early_clean.numpy(),
        )

    # Training: one epoch over the kept rows.

    def train_epoch(self) -> None:
        """Run the remaining steps of this epoch."""
        state, start = self.state, time.monotonic()
        batches = self.epoch_batches()
        facts = state.epoch_facts = state.epoch_facts or vars(EpochTotals())
        kept = int(state.keep.sum())
        self.recount_prior()
        state.model.train()
        todo = [self.batch_rows(batch) for batch in batches[state.step :]]
        for images, (used, mine) in zip(self.loader.batches([mine for _, mine in todo]), todo, strict=True):
            stopping, saving = self.train_step(images, mine, used, len(batches))
            state.step += 1
            facts["seconds"], start = facts["seconds"] + time.monotonic() - start, time.monotonic()
            count = len(batches[state.step - 1])
            self.session.advance(
                count,
                total=self.schedule.epochs * self.recipe.images_per_epoch(self.rows),
                **progress_facts(state.epoch, self.schedule, kept=kept, rows=self.rows),
            )
            if stopping:
                self.halt()
            if saving:
                self.save()
        self.processes.mean_(state.norm_buffers())
        if facts["skipped"] > SKIPPED_SHARE * len(batches):
            skipped = int(facts["skipped"])
            self.session.warn(f"Epoch {state.epoch}: {skipped} of {len(batches)} batches had every row dropped.")

    def epoch_batches(self) -> list[Tensor]:
        """Return the batches of rows of this epoch; without the held-out rows during the warm-up."""
        epoch = self.state.epoch
        score_only = (
            torch.cat((self.score_only, self.held_out)) if self.schedule.phase(epoch) == "warm-up" else self.score_only
        )
        return batches_of(self.labels, score_only, self.recipe, make_generator(self.recipe.seed, epoch, 0))

    def batch_rows(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of a batch that the network computes: over all ranks, and on this rank.

        These are the kept rows; with --score-pass train or step all rows: dropped ones have weight zero in the loss.
        """
        used = batch[self.state.keep[batch]] if self.recipe.score_pass == "eval" else batch
        return used, self.processes.rows_of_rank(used)

    def train_step(self, images: Tensor, mine: Tensor, used: Tensor, steps: int) -> tuple[bool, bool]:
        """Update the weights once; a batch without kept rows changes nothing. Returns (stop, save a checkpoint)."""
        state, recipe, processes, facts = self.state, self.recipe, self.processes, self.state.epoch_facts
        sieves = recipe.score_pass == "step"  # then v is known only after the forward pass
        count = int(state.keep[used].sum())
        if count == 0 and not sieves:
            return self.skip_step()
        beta = self.schedule.beta(state.epoch)
        for group in state.optimizer.param_groups:
            group["lr"] = group["share"] * self.schedule.learning_rate(state.epoch, state.step / steps)
        generator = make_generator(recipe.seed, state.epoch, state.step + 1, processes.rank)
        views = self.loader.normalize(augment(images, generator, flip=bool(state.flip)))
        partner, share = torch.arange(len(mine)), 1.0
        if recipe.mixup:  # `mine` contains only kept rows, so dropped rows are never mixed in
            views, partner, share = mix(views, generator, recipe.mixup)
        with state.precision.autocast():
            logits = state.model(views)
        if sieves:
            self.sieve.keep_batch(logits.detach(), used)
            count = int(state.keep[used].sum())
            if count == 0:
                return self.skip_step()
        weight = state.keep[mine].float() / count * (processes.rank < len(used))
        labels = self.labels[mine].to(processes.device)
        each = mixed_loss(logits, labels, labels[partner.to(processes.device)], share, self.loss(beta))
        loss = (each * weight.to(processes.device)).sum()
        scaler, parameters = state.precision.scaler, list(state.model.parameters())
        state.optimizer.zero_grad()
        scaler.scale(loss).backward()
        signals = (self.session.stop() is not None, time.monotonic() - self.saved_at > SAVE_SECONDS)
        total, stopping, saving = processes.add_gradients(parameters, (float(loss.detach()), *map(float, signals)))
        scaler.unscale_(state.optimizer)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, recipe.clip_norm))
        self.require_finite(total if scaler.is_enabled() else total + norm)  # a scaler handles infinite norms itself
        scaler.step(state.optimizer)
        scaler.update()
        state.updates += 1
        state.update_average(steps, recipe.ema_epochs)
        facts["loss"] += total * count
        facts["kept"] += count
        if recipe.score_pass == "train":
            self.sieve.add_batch(logits, used)
        if self.observe is not None:
            self.observe(logits.detach(), mine)
        return stopping > 0, saving > 0

    def skip_step(self) -> tuple[bool, bool]:
        """Count a batch without kept rows, which changes nothing. Returns (stop, save a checkpoint)."""
        self.state.epoch_facts["skipped"] += 1
        return self.processes.size == 1 and self.session.stop() is not None, False

    def recount_prior(self) -> None:
        """Count the prior of CR on the kept rows, if the recipe asks for it: a class without kept rows gets zero."""
        if self.recipe.recount_prior:
            self.prior = self.state.prior_of_kept(self.labels, len(self.prior))
            self.device_prior = self.prior.float().to(self.processes.device)

    def loss(self, beta: float) -> Loss:
        """Return the loss of this epoch."""
        if self.recipe.regularizer == ENTROPY:
            return lambda logits, labels: entropy_loss(logits, labels, beta)
        return lambda logits, labels: training_loss(logits, labels, self.device_prior, beta)

    def require_finite(self, value: float) -> None:
        """Raise an error if the loss is not finite, before the weights are updated."""
        if not abs(value) < float("inf"):
            raise TrainingError(
                f"The loss is not finite in epoch {self.state.epoch}, step {self.state.step + 1}.",
                "Lower --lr or --beta, or lengthen --warmup-epochs. The last checkpoint is kept.",
            )

    # Between epochs: scores of the held-out rows during the warm-up; later scores of all rows, and the sieve.

    def score_epoch(self) -> tuple[int, int, int]:
        """Score and sieve at the end of an epoch. Returns how many rows it kept, are flagged now, and are undecided.

        A run that is stopped here resumes from the start of this method.
        """
        state, phase = self.state, self.schedule.phase(self.state.epoch)
        snapshot = phase == "settle" and second_opinion.records_snapshot(state, last=self.schedule.snapshot_epoch)
        if snapshot and state.ce_snapshot is None:
            state.ce_snapshot = self.scorer.zeros(self.rows)
        self.sieve.make_sums()
        if self.checkpoints is not None:
            self.checkpoints.wait()  # the sums of probabilities in it change now
        self.resume_point = state.to_checkpoint()
        if phase == "warm-up" and len(self.held_out):
            self.watch_warmup()
        if snapshot:
            second_opinion.record_snapshot(state, self.scorer)
        kept, margins = int(state.keep.sum()), self.sieve.score_rows()
        flagged, unclear = self.sieve.apply(margins)
        state.pending, self.resume_point, state.scored = None, None, {}
        if phase == "settle" and state.epoch == self.schedule.snapshot_epoch:
            state.restore_stash()  # at the end: a stop before this resumes from the start of this method
        return kept, flagged, unclear

    def watch_warmup(self) -> None:
        """Decide from the held-out rows whether the warm-up ends, and whether to use flips."""
        warmup.update_warmup(self.state, self.recipe, self.scorer, self.held_out, self.labels[self.held_out])
        if self.observe is not None:  # these rows are in no training batch of the warm-up
            self.observe(self.scorer.score(self.state, self.held_out).log(), self.held_out)

    # Checkpoints.

    def save(self) -> None:
        """Write a checkpoint, on rank 0. BatchNorm's statistics are averaged over the ranks first."""
        self.saved_at = time.monotonic()
        self.processes.mean_(self.state.norm_buffers())
        checkpoint = self.resume_point or self.state.to_checkpoint()
        facts = checkpoint.facts
        facts["scored"] = dict(self.state.scored)  # sums of probabilities are added to in place
        if self.checkpoints is not None:
            self.checkpoints.save(facts["updates"] * 2 + (facts["step"] == 0), checkpoint)

    def pause(self) -> None:
        """Between two batches of scoring: stop if requested. Several ranks stop only at a training step, together."""
        if self.processes.size == 1 and self.session.stop() is not None:
            self.halt()

    def halt(self) -> NoReturn:
        """Write a checkpoint and raise the stop."""
        self.save()
        raise self.session.stop() or Stopped("Another rank was asked to stop.", exit_code=143)
