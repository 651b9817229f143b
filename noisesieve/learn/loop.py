"""The training loop with the dynamic sieve (the paper's alternate search): train on the kept rows, score all, sieve.

Random numbers depend only on (seed, epoch, step), so a run that resumes from any step gives the same bits as one that
was never interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import NoReturn

import torch
from torch import Tensor

from noisesieve.core.errors import Stopped
from noisesieve.learn import second_opinion, warmup
from noisesieve.learn.augment import Draws, augment, draw, draw_mix
from noisesieve.learn.batch_loader import BatchLoader, Columns, StepPlan
from noisesieve.learn.checkpoint import Checkpoint, CheckpointStore
from noisesieve.learn.device import prepare_device
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
from noisesieve.learn.update import Updater

SAVE_SECONDS = 300.0  # time between two checkpoints within a long epoch
ADVICE = "Lower --lr or --beta, or lengthen --warmup-epochs. The last checkpoint is kept."
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
        prepare_device(device, deterministic=session.deterministic)
        self.recipe, self.session, self.checkpoints, self.observe = recipe, session, checkpoints, observe
        self.labels, self.trusted, self.rows = data.labels, data.trusted, len(data)
        self.score_only = data.score_only
        self.loader = BatchLoader(data.pixels, device, statistics=statistics_of(recipe.weights, recipe.backbone))
        self.scorer = Scorer(self.loader, self.processes, data.classes, self.pause)
        self.prior = data.prior(balanced=recipe.balanced)
        self.device_prior = self.prior.float().to(device)  # Metal has no float64
        self.held_out = self.labels.new_zeros(0)
        if recipe.adaptive_warmup or recipe.flip is None:
            # Rows that are kept out to the end serve for the warm-up, too.
            self.held_out = data.score_only
            if not len(self.held_out):
                self.held_out = warmup.held_out_rows(self.labels, seed=recipe.seed)
        self.state = initial_state(
            recipe, rows=self.rows, classes=data.classes, processes=self.processes, weights=data.weights
        )
        self.state.warmup = None if recipe.adaptive_warmup else recipe.warmup_epochs
        self.state.loop_eps = None if recipe.adaptive_eps else recipe.loop_eps
        self.state.mean, self.state.std = self.loader.statistics
        if len(self.held_out) == 0:  # nothing to decide from: the full warm-up, and no flips unless asked for
            self.state.warmup = recipe.warmup_epochs
            self.state.flip = bool(recipe.flip)
        self.sieve = EpochSieve(self.state, recipe, data, self.scorer, self.processes)
        self.updater = Updater(
            self.state,
            self.processes,
            image_size=recipe.image_size,
            clip_norm=recipe.clip_norm,
            ema_epochs=recipe.ema_epochs,
        )
        self.unread: list[tuple[Tensor, Tensor]] = []  # logits that the sieve has not read, with their rows
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
        if self.checkpoints is not None:
            self.checkpoints.wait()  # the sums of probabilities in it change now
        self.updater.end()
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
        self.updater.begin([facts["loss"]])
        for plan, images, columns in self.loader.steps(self.plans(batches)):
            self.train_step(plan, images, columns, len(batches))
            state.step += 1
            facts["seconds"], start = facts["seconds"] + time.monotonic() - start, time.monotonic()
            self.session.advance(
                len(batches[state.step - 1]),
                total=self.schedule.epochs * self.recipe.images_per_epoch(self.rows),
                **progress_facts(state.epoch, self.schedule, kept=kept, rows=self.rows),
            )
            if self.updater.looks_after(state.step - 1):
                self.look()
        self.look()
        facts["loss"] = self.updater.totals()[0]
        self.processes.mean_(state.norm_buffers())
        if facts["skipped"] > SKIPPED_SHARE * len(batches):
            skipped = int(facts["skipped"])
            self.session.warn(f"Epoch {state.epoch}: {skipped} of {len(batches)} batches had every row dropped.")

    def epoch_batches(self) -> list[Tensor]:
        """Return the batches of rows of this epoch; without the held-out rows during the warm-up."""
        epoch = self.state.epoch
        score_only = self.score_only
        if self.schedule.phase(epoch) == "warm-up":
            score_only = torch.cat((score_only, self.held_out)).unique()
        return batches_of(self.labels, score_only, self.recipe, make_generator(self.recipe.seed, epoch, 0))

    def plans(self, batches: list[Tensor]) -> Iterator[StepPlan]:
        """Plan the remaining steps of this epoch: rows, labels, weights, and the draws of the augmentation.

        The rows that the network computes are the kept ones; with --score-pass train or step all: dropped ones have
        weight zero in the loss. Draws are made for the whole batch, so that the number of ranks changes rounding only.
        (With mixup partners are of the same rank, and change with it.)
        """
        state, recipe = self.state, self.recipe
        keep, flip = state.keep, bool(state.flip)
        for step, batch in enumerate(batches[state.step :], state.step):
            used = batch[keep[batch]] if recipe.score_pass == "eval" else batch
            generator = make_generator(recipe.seed, state.epoch, step + 1, 0)
            columns = draw(len(used), self.loader.size, generator, flip=flip).columns()
            local, share = {}, 1.0
            if recipe.mixup and len(used):
                local["partner"], share = draw_mix(len(self.processes.rows_of_rank(used)), generator, recipe.mixup)
            kept = int(keep[used].sum())
            columns |= {"label": self.labels[used], "weight": keep[used].float() / max(1, kept)}
            yield StepPlan.of(used, self.processes, columns, kept=kept, local=local, share=share)

    def train_step(self, plan: StepPlan, images: Tensor, columns: Columns, steps: int) -> None:
        """Update the weights once; a batch without kept rows changes nothing."""
        state, recipe = self.state, self.recipe
        sieves = recipe.score_pass == "step"  # then v is known only after the forward pass
        if plan.kept == 0 and not sieves:
            state.epoch_facts["skipped"] += 1
            return
        labels, weight = columns["label"].long(), columns["weight"].float()
        views, partners = self.loader.normalize(augment(images, Draws.of(columns))), labels
        if recipe.mixup:  # only kept rows are computed, so dropped rows are never mixed in
            partner = columns["partner"].long()
            views, partners = plan.share * views + (1 - plan.share) * views[partner], labels[partner]
        with state.precision.autocast():
            logits = self.updater.module(views)
        count = plan.kept
        if sieves:  # as in the authors' code: waits for the device in every step
            self.sieve.keep_batch(logits.detach(), plan.used)
            count = int(state.keep[plan.used].sum())
            if count == 0:
                state.epoch_facts["skipped"] += 1
                return
            kept = state.keep[plan.mine].float() / count * (self.processes.rank < len(plan.used))
            weight = kept.to(self.processes.device)
        each = mixed_loss(logits, labels, partners, plan.share, self.loss(self.schedule.beta(state.epoch)))
        loss = (each * weight).sum()
        rate = self.schedule.learning_rate(state.epoch, state.step / steps)
        self.updater.step(loss, [loss * count], rate=rate, steps=steps)
        state.epoch_facts["kept"] += count
        if recipe.score_pass == "train":
            self.unread.append((logits.detach(), plan.used))
        if self.observe is not None:
            self.observe(logits.detach(), plan.mine)

    def look(self) -> None:
        """Read what the device has computed since the last look; save or stop if any rank was asked to."""
        for logits, used in self.unread:  # --score-pass train
            self.sieve.add_batch(logits, used)
        self.unread = []
        timed = time.monotonic() - self.saved_at > SAVE_SECONDS
        stopping, saving = self.updater.look(self.session.stop() is not None, timed, advice=ADVICE)
        if stopping:
            self.halt()
        if saving:
            self.save()

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
        self.resume_point = state.to_checkpoint(self.processes)
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
        """Write a checkpoint: every rank its part."""
        self.saved_at = time.monotonic()
        if self.state.epoch_facts and self.resume_point is None:
            self.state.epoch_facts["loss"] = self.updater.totals()[0]
        checkpoint = self.resume_point or self.state.to_checkpoint(self.processes)
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
