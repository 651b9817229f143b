"""The training loop with the dynamic sieve (the paper's alternate search): train on the kept rows, score all, sieve.

Random numbers depend only on (seed, epoch, step), so a run that resumes from any step gives the same bits as one that
was never interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from noisesieve.core.errors import Stopped, TrainingError
from noisesieve.core.progress import Watcher
from noisesieve.core.recipes import NetworkRecipe
from noisesieve.core.records import Scores
from noisesieve.learn import second_opinion, warmup
from noisesieve.learn.augment import augment, mix
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.checkpoint import CheckpointStore
from noisesieve.learn.device import make_deterministic
from noisesieve.learn.distributed import Processes
from noisesieve.learn.history import HistoryRecorder
from noisesieve.learn.losses import mixed_loss
from noisesieve.learn.networks.pretrained import statistics_of
from noisesieve.learn.schedule import Schedule
from noisesieve.learn.score import Scorer
from noisesieve.learn.state import TrainingState, initial_state
from noisesieve.learn.training_data import TrainingData, batches_of, make_generator
from noisesieve.sieve.formulas import margin, undecided

SAVE_SECONDS = 300.0  # time between two checkpoints within a long epoch
SKIPPED_SHARE = 0.05  # share of skipped batches in an epoch above which there is a warning


class Loop:
    """One training run. Start with `run`: the other methods are its steps."""

    def __init__(
        self,
        training_data: TrainingData,
        recipe: NetworkRecipe,
        *,
        processes: Processes,
        watcher: Watcher,
        checkpoints: CheckpointStore | None,
        stop: Callable[[], Stopped | None],
        observe: Callable[[Tensor, Tensor], None] | None = None,  # logits (B, K) and rows of every training step
    ) -> None:
        make_deterministic(processes.device)
        self.recipe, self.processes, self.watcher = recipe, processes, watcher
        self.checkpoints, self.stop, self.observe = checkpoints, stop, observe
        self.labels, self.trusted, self.score_only = (
            training_data.labels,
            training_data.trusted,
            training_data.score_only,
        )
        self.rows = len(self.labels)
        statistics = statistics_of(recipe.weights, recipe.backbone)
        self.loader = BatchLoader(training_data.pixels, processes.device, statistics=statistics)
        self.scorer = Scorer(self.loader, processes, training_data.classes, self.pause)
        self.prior = training_data.prior(balanced=recipe.balanced)
        self.device_prior = self.prior.float().to(processes.device)  # Metal has no float64
        self.held_out = self.labels.new_zeros(0)
        if recipe.adaptive_warmup or recipe.flip is None:
            self.held_out = warmup.held_out_rows(self.labels, seed=recipe.seed)
        self.state = initial_state(
            recipe, rows=self.rows, classes=training_data.classes, processes=processes, weights=training_data.weights
        )
        self.state.warmup = None if recipe.adaptive_warmup else recipe.warmup_epochs
        self.state.loop_eps = None if recipe.adaptive_eps else recipe.loop_eps
        self.state.mean, self.state.std = self.loader.mean.tolist(), self.loader.std.tolist()
        if len(self.held_out) == 0:  # nothing to decide from: the full warm-up, and no flips unless asked for
            self.state.warmup = recipe.warmup_epochs
            self.state.flip = bool(recipe.flip)
        self.recorder = HistoryRecorder(watcher)
        self.resume_point: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self.saved_at = time.monotonic()

    @property
    def schedule(self) -> Schedule:
        """The schedule, with the longest possible warm-up while its end is unknown."""
        known = self.state.warmup
        return Schedule(self.recipe, self.recipe.warmup_epochs if known is None else known)

    @property
    def images(self) -> int:
        """The approximate number of images per epoch."""
        return self.recipe.epoch_steps * self.recipe.batch_size if self.recipe.epoch_steps else self.rows

    def run(self) -> tuple[TrainingState, Scores]:
        """Train, score and sieve until the last epoch, starting from the last checkpoint if there is one."""
        state = self.state
        if self.checkpoints is not None and (found := self.checkpoints.latest()) is not None:
            state.restore(*found)
            self.watcher.note(f"Resuming in epoch {state.epoch}, step {state.step}.")
        self.watcher.stage("training", self.schedule.epochs * self.images)
        self.watcher.advance((state.epoch - 1) * self.images)
        while state.epoch <= self.schedule.epochs:
            if self.schedule.phase(state.epoch) == "settle" and not state.stashed:
                state.stash_weights()
            with self.recorder.timed("train"):
                self.train_epoch()
            with self.recorder.timed("score"):
                kept, flagged, undecided_rows = self.score_epoch()
            steps = len(self.epoch_batches())
            self.recorder.record(
                state, self.schedule, steps=steps, kept=kept, flagged=flagged, undecided=undecided_rows
            )
            state.epoch, state.step, state.epoch_facts = state.epoch + 1, 0, {}
            self.save()
        self.watcher.finish()
        return state, self.scores()

    def scores(self) -> Scores:
        """Return the scores of every row, averaged over the last epochs and combined with the CE snapshot."""
        state, schedule = self.state, self.schedule
        assert state.prob_sum is not None
        sieve_epochs = max(1, schedule.epochs - schedule.sieve_start + 1)
        mean, weight = state.prob_sum / state.prob_count, self.recipe.opinion_weight
        probs, disagree = second_opinion.combine(state, mean, self.labels, weight)
        return Scores(
            probs=probs.numpy(),
            flagged_epochs=(state.dropped.double() / sieve_epochs).numpy(),
            prior=self.prior.numpy(),
            beta=schedule.beta(schedule.epochs),
            history=state.history,
            facts={
                "warmup_epochs": schedule.warmup,
                "epochs": schedule.epochs,
                "sieve_start": schedule.sieve_start,
                "flip": bool(state.flip),
                "held_out": len(self.held_out),
                "held_out_agreement": state.agreement,
                "loop_eps": state.loop_eps or self.recipe.loop_eps,
            },
            disagree=None if disagree is None else disagree.numpy(),
            margin_history=None if state.margin_history is None else state.margin_history.numpy(),
            saved_model_scores=None if state.saved_model_scores is None else state.saved_model_scores.numpy(),
            division=None if state.division is None else state.division.numpy(),
        )

    # Training: one epoch over the kept rows.

    def train_epoch(self) -> None:
        """Run the remaining steps of this epoch."""
        state = self.state
        batches = self.epoch_batches()
        state.epoch_facts = state.epoch_facts or {"loss": 0.0, "kept": 0, "skipped": 0}
        state.model.train()
        todo = [self.batch_rows(batch) for batch in batches[state.step :]]
        for images, (kept, mine) in zip(self.loader.batches([mine for _, mine in todo]), todo, strict=True):
            stopping, saving = self.train_step(images, mine, kept, len(batches))
            state.step += 1
            self.recorder.show(state, self.schedule, len(batches[state.step - 1]), self.images)
            if stopping:
                self.halt()
            if saving:
                self.save()
        self.processes.mean_(state.norm_buffers())
        if state.epoch_facts["skipped"] > SKIPPED_SHARE * len(batches):
            skipped = int(state.epoch_facts["skipped"])
            self.watcher.warn(f"Epoch {state.epoch}: {skipped} of {len(batches)} batches had every row dropped.")

    def epoch_batches(self) -> list[Tensor]:
        """Return the batches of rows of this epoch; without the held-out rows during the warm-up."""
        epoch = self.state.epoch
        score_only = (
            torch.cat((self.score_only, self.held_out)) if self.schedule.phase(epoch) == "warm-up" else self.score_only
        )
        return batches_of(self.labels, score_only, self.recipe, make_generator(self.recipe.seed, epoch, 0))

    def batch_rows(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of a batch that the network computes: over all ranks, and on this rank.

        These are the kept rows; with --score-pass train all rows, where dropped ones have weight zero in the loss.
        """
        kept = batch if self.recipe.score_pass == "train" else batch[self.state.keep[batch]]
        mine = kept[self.processes.rank :: self.processes.size]
        return kept, mine if len(mine) else kept[:1]  # a rank without rows runs one row with weight zero

    def train_step(self, images: Tensor, mine: Tensor, kept: Tensor, steps: int) -> tuple[bool, bool]:
        """Update the weights once; a batch without kept rows changes nothing. Returns (stop, save a checkpoint)."""
        state, recipe, processes, facts = self.state, self.recipe, self.processes, self.state.epoch_facts
        count = int(state.keep[kept].sum())
        if count == 0:
            facts["skipped"] += 1
            return processes.size == 1 and self.stop() is not None, False
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
        weight = state.keep[mine].float() / count * (processes.rank < len(kept))
        labels = self.labels[mine].to(processes.device)
        each = mixed_loss(logits, labels, labels[partner.to(processes.device)], share, self.device_prior, beta)
        loss = (each * weight.to(processes.device)).sum()
        scaler, parameters = state.precision.scaler, list(state.model.parameters())
        state.optimizer.zero_grad()
        scaler.scale(loss).backward()
        signals = (self.stop() is not None, time.monotonic() - self.saved_at > SAVE_SECONDS)
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
            self.sieve_batch(logits, kept, mine)
        if self.observe is not None:
            self.observe(logits.detach(), mine)
        return stopping > 0, saving > 0

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
        state = self.state
        self.resume_point = state.to_checkpoint()
        phase = self.schedule.phase(state.epoch)
        if phase == "warm-up" and len(self.held_out):
            warmup.update_warmup(state, self.recipe, self.scorer, self.held_out, self.labels[self.held_out])
            if self.observe is not None:  # these rows are in no training batch of the warm-up
                self.observe(self.scorer.score(state, self.held_out).log(), self.held_out)
        if phase == "settle":
            second_opinion.record_snapshot(state, self.scorer, last=self.schedule.settled)
        schedule = self.schedule  # read again: the end of the warm-up may just have been decided
        kept = int(state.keep.sum())
        if state.epoch >= schedule.sieve_start:
            state.dropped = state.dropped + (~state.keep).long()
        last, everything = state.epoch == schedule.epochs, torch.arange(self.rows)
        margins = None
        sieved = state.epoch >= schedule.sieve_start or schedule.sieve_start > schedule.epochs  # or no sieve at all
        averaged = sieved and state.epoch > schedule.epochs - self.recipe.average_epochs
        if last or (averaged and self.recipe.score_pass == "eval"):
            probs = self.scorer.score(state, everything)
            state.prob_sum = probs if state.prob_sum is None else state.prob_sum + probs
            state.prob_count += 1
            if last:
                state.saved_model_scores = second_opinion.label_scores(probs, self.labels, self.recipe.sieve_eps)
            margins = self.margins_of(probs, everything)
        elif schedule.scores_after(state.epoch) and self.recipe.score_pass == "eval":
            if state.loop_eps is None:  # the first scoring pass also chooses the floor of the loop
                probs = self.scorer.score(state, everything)
                state.loop_eps = second_opinion.choose_loop_eps(state, probs, self.labels, self.recipe)
                margins = self.margins_of(probs, everything)
            else:
                margins = self.scorer.score(state, everything, reduce=self.margins_of)
        if margins is not None:
            state.pending = margins < 0
            state.add_margins(margins)
        if state.epoch == self.recipe.divide_at and state.pending is not None:
            state.division = state.pending | self.trusted
        flagged = 0 if state.pending is None else int((~state.pending).sum())
        if state.pending is not None and not last:
            self.sieve(state.pending)
        state.pending, self.resume_point = None, None
        if phase == "settle" and state.epoch == schedule.settled:
            state.restore_stash()  # at the end: a stop before this resumes from the start of this method
        return kept, flagged, 0 if margins is None else undecided(margins)

    def margins_of(self, probs: Tensor, rows: Tensor) -> Tensor:
        """Return the margins (B,) of probabilities (B, K), with the floor of the loop."""
        return margin(probs, self.labels[rows], self.state.loop_eps or self.recipe.loop_eps)

    def sieve(self, clean: Tensor) -> None:
        """Set v for the next epoch. Raises an error if every row would be dropped."""
        state = self.state
        if state.epoch + 1 < self.schedule.sieve_start:
            return
        clean = clean | self.trusted
        if not clean.any():
            raise TrainingError(
                f"Every row was dropped after epoch {state.epoch}: no given label passes the threshold.",
                "Lengthen --warmup-epochs, lower --beta, or check that labels and images belong together.",
            )
        state.keep = clean

    def sieve_batch(self, logits: Tensor, batch: Tensor, mine: Tensor) -> None:
        """--score-pass train: set v for the next epoch from the augmented batch, as in the authors' code."""
        state = self.state
        gaps = self.margins_of(logits.detach().cpu().double().softmax(dim=1), mine)
        clean = torch.zeros(self.rows)
        clean[mine] = (gaps < 0).float() * (self.processes.rank < len(batch))
        pending = state.keep.clone() if state.pending is None else state.pending  # rows in no batch keep their v
        pending[batch] = self.processes.sum(clean[batch]) > 0
        state.pending = pending

    # Checkpoints.

    def save(self) -> None:
        """Write a checkpoint, on rank 0. BatchNorm's statistics are averaged over the ranks first."""
        self.saved_at = time.monotonic()
        self.processes.mean_(self.state.norm_buffers())
        tensors, facts = self.resume_point or self.state.to_checkpoint()
        if self.checkpoints is not None and self.processes.is_leader:
            self.checkpoints.save(facts["updates"] * 2 + (facts["step"] == 0), tensors, facts)

    def pause(self) -> None:
        """Between two batches of scoring: stop if requested. Several ranks stop only at a training step, together."""
        if self.processes.size == 1 and self.stop() is not None:
            self.halt()

    def halt(self) -> NoReturn:
        """Write a checkpoint and raise the stop."""
        self.save()
        raise self.stop() or Stopped("Another rank was asked to stop.", exit_code=143)
