"""The training loop with the sieve on frozen features: the scores of a row come from heads not trained on it.

Each of `head_seeds` partitions splits the rows into `folds`. A head is trained on all folds but its own, with its own
sieve, and scores its own fold; rows of classes with a single group are in the training of every head. With a few
thousand images, a head that scored its own training rows would have memorized their labels. All heads are trained at
once as one matrix product with the classes first, (K, H, B), which makes the softmax over few classes much faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from noisesieve.core.errors import TrainingError
from noisesieve.core.memory import room_for
from noisesieve.core.records import NoiseModel
from noisesieve.learn.device import in_float64_on, prepare_device, read_behind
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.evidence import EpochRow, TrainedScores, TrainingFacts
from noisesieve.learn.frozen.folds import assign_folds, in_single_group_class
from noisesieve.learn.frozen.head_data import Head, HeadData, HeadScores, Projected
from noisesieve.learn.history import EpochTotals, epoch_row, progress_facts
from noisesieve.learn.losses import training_loss
from noisesieve.learn.recipes import HeadRecipe
from noisesieve.learn.schedule import Schedule
from noisesieve.learn.training_data import make_generator, shuffled_batches
from noisesieve.learn.warmup import flipping_is_harmless
from noisesieve.sieve.decide import choose_floor
from noisesieve.sieve.formulas import margin, undecided

LOOK_STEPS = 16  # steps between two looks at the loss on a GPU; on a CPU each step is looked at
BLOCK_VALUES = 2**22  # probabilities computed at a time while scoring


class Heads:
    """One training of all heads. Start with `run`: the other methods are its steps."""

    def __init__(
        self,
        data: HeadData,
        recipe: HeadRecipe,
        session: TrainingSession,
        *,
        observe: Callable[[Tensor, Tensor], None] | None = None,  # mean logits (B, K) and rows of every step
        projected: Projected | None = None,  # None: computed here
    ) -> None:
        device, features, labels, classes = session.device, data.features, data.labels, data.classes
        prepare_device(device, deterministic=session.deterministic)
        self.recipe, self.device, self.session, self.observe = recipe, device, session, observe
        self.schedule = Schedule(recipe, recipe.warmup_epochs)
        self.labels, self.trusted, self.classes, self.rows = labels, data.trusted, classes, len(labels)
        projected = projected or Projected.of(data, recipe)
        self.projection, self.features = projected.projection, projected.points.to(device)
        self.width = self.features.shape[2]
        counted = torch.bincount(labels, minlength=classes).double() / self.rows
        self.prior = torch.full_like(counted, 1 / classes) if recipe.prior == "uniform" else counted
        self.sieve_eps = recipe.sieve_eps
        self.noise_model: NoiseModel | None = None
        groups = data.together
        self.heads = recipe.folds * recipe.head_seeds
        self.held_out_head = assign_folds(
            labels, groups, folds=recipe.folds, partitions=recipe.head_seeds, seed=recipe.seed
        )
        self.held_out = torch.zeros((self.rows, self.heads), dtype=torch.bool).scatter_(1, self.held_out_head, True)
        self.held_out[in_single_group_class(labels, groups)] = False  # else some head would have no row of the class
        if data.unused is not None:
            self.held_out |= data.unused[:, None]
        self.keep = ~self.held_out  # (N, H): this head is trained on the row
        self.weight = torch.zeros((classes * self.heads, self.width), device=device)
        self.bias = torch.zeros((classes * self.heads, 1), device=device)
        self.momentum = [torch.zeros_like(self.weight), torch.zeros_like(self.bias)]
        self.flip: bool | None = recipe.flip if features.views > 1 else False
        self.dropped = torch.zeros(self.rows, dtype=torch.float64)
        epochs = range(1, self.schedule.epochs + 1)
        scored = sum(self.schedule.scores_after(epoch) or self._averages(epoch) for epoch in epochs)
        self.margin_history = torch.empty((scored, self.rows), dtype=torch.float32)
        self.scorings = 0
        self.history: list[EpochRow] = []

    def run(self) -> tuple[Head, TrainedScores]:
        """Train, score and sieve until the last epoch."""
        schedule, counted, scored = self.schedule, 0, None
        total = torch.from_numpy(room_for((self.rows, self.classes)))
        self.session.stage("training", schedule.epochs * self.rows)
        for epoch in range(1, schedule.epochs + 1):
            start = time.monotonic()
            loss, steps, skipped = self.train_epoch(epoch)
            trained = time.monotonic()
            last, averaged = epoch == schedule.epochs, self._averages(epoch)
            kept, undecided_rows, flagged = int(self._kept_by_most_heads().sum()), 0, 0
            if epoch >= schedule.sieve_start:
                self.dropped += (~self._kept_by_most_heads()).double()
            if epoch == schedule.warmup and self.flip is None:
                self.flip = self.may_flip()
            if averaged or schedule.scores_after(epoch):
                sieves = not last and epoch + 1 >= schedule.sieve_start
                scored = self.score(sieve=sieves, add_to=total if averaged else None)
                counted += averaged
                self.margin_history[self.scorings] = scored.margins
                self.scorings += 1
                undecided_rows, flagged = undecided(scored.margins), int((scored.margins >= 0).sum())
                if sieves:
                    self.sieve(scored.clean, epoch)
            share = float((~self.held_out).double().mean())  # of the rows that one head is trained on
            images = round(kept * self.heads * share)
            totals = EpochTotals((loss or 0.0) * images, images if loss is not None else 0, skipped, trained - start)
            self.history.append(
                epoch_row(
                    epoch,
                    schedule,
                    totals,
                    counts=(kept, flagged, undecided_rows, steps),
                    score_seconds=time.monotonic() - trained,
                )
            )
        self.session.finish()
        assert scored is not None
        probs = total.div_(counted)
        if self.recipe.adaptive_eps:
            self.sieve_eps, self.noise_model = choose_floor(probs, self.labels)
            scored = self.score(sieve=False)  # the saved model is summarized with the chosen floor
        return self.head(), self.scores(probs, scored)

    def _averages(self, epoch: int) -> bool:
        """Return True if the probabilities after this epoch count."""
        return epoch > self.schedule.epochs - self.recipe.average_epochs

    def _kept_by_most_heads(self) -> Tensor:
        """Return (N,): True for rows that are kept by most of the heads that may train on them, or that none may."""
        may = (~self.held_out).sum(dim=1)
        return (self.keep.sum(dim=1) * 2 > may) | (may == 0)

    # Training: one step of all heads at once.

    def train_epoch(self, epoch: int) -> tuple[float | None, int, int]:
        """Train one epoch. Returns the mean loss, the number of steps, and of those where some head had no row."""
        recipe, beta = self.recipe, self.schedule.beta(epoch)
        none = self.labels.new_zeros(0)
        batches = shuffled_batches(
            self.rows, none, size=recipe.batch_size, generator=make_generator(recipe.seed, epoch, 0)
        )
        prior, skipped, steps = self.prior.float().to(self.device), 0, len(batches)
        kept = int(self._kept_by_most_heads().sum())
        sums = torch.zeros(2, device=self.device)  # of the loss, and of the steps that have one
        first_bad = torch.full((), -1, dtype=torch.int32, device=self.device)
        look_steps = 1 if self.device.type == "cpu" else LOOK_STEPS
        for step, batch in enumerate(batches):
            self.session.pause()
            count = self.keep[batch].sum(dim=0)  # (H,), on the CPU: whether a head has a row needs no device
            active = int((count > 0).sum())
            views, given, weights = self._inputs(batch, make_generator(recipe.seed, epoch, step + 1))
            logits = (self.weight @ views.T + self.bias).view(self.classes, -1).requires_grad_()  # (K, H * B)
            each = training_loss(logits, given.repeat(self.heads), prior, beta, classes_first=True)
            loss = (each.view(self.heads, -1) * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)  # (H,)
            (grad,) = torch.autograd.grad(loss.sum(), logits)
            rate = self.schedule.learning_rate(epoch, step / steps)
            self._update(views, grad.reshape(-1, len(batch)), None if active == self.heads else count > 0, rate)
            skipped += active < self.heads
            if active:
                mean = loss.detach().sum() / active
                sums += torch.stack((mean, torch.ones_like(mean)))
                first_bad = torch.where((first_bad < 0) & ~torch.isfinite(mean), step, first_bad)
            if (step + 1) % look_steps == 0 or step + 1 == steps:
                self._look(first_bad, epoch)
            if self.observe is not None:
                self._report_logits(logits.detach(), batch)
            self.session.advance(len(batch), **progress_facts(epoch, self.schedule, kept=kept, rows=self.rows))
        total, counted = sums.tolist()
        return total / counted if counted else None, steps, skipped

    def _look(self, first_bad: Tensor, epoch: int) -> None:
        """Raise an error for the first step whose loss was not finite."""
        if (step := int(first_bad)) >= 0:
            raise TrainingError(f"The loss is not finite in epoch {epoch}, step {step + 1}.", "Lower --lr or --beta.")

    def _inputs(self, batch: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return features (B, Q), labels (B,) and the weights of each head (H, B) on the device, by one copy.

        Features are those of a random view if flips are allowed, else of the plain view.
        """
        view = torch.zeros(len(batch), dtype=torch.int64)
        if self.flip:
            view = torch.randint(0, 2, (len(batch),), generator=generator)
        columns = (batch, view, self.labels[batch], *self.keep[batch].T)
        numbers = torch.stack([column.double() for column in columns])
        if self.device.type == "cuda":
            numbers = numbers.pin_memory()
        if self.device.type == "mps":  # Metal has no float64
            numbers = numbers.float()
        rows, view, given, *weights = numbers.to(self.device, non_blocking=True)
        return self.features[rows.long(), view.long()], given.long(), torch.stack(weights).float()

    def _update(self, views: Tensor, grad: Tensor, active: Tensor | None, rate: float) -> None:
        """Take one SGD step as torch's SGD does. A head without rows in the batch is unchanged; None: all have some.

        The bias is not decayed: it holds the frequencies of the classes, and a smaller one calls the majority wrong.
        """
        recipe = self.recipe
        mask = None if active is None else active.repeat(self.classes).float()[:, None].to(self.device)  # (K * H, 1)
        slopes = ((grad @ views).add(self.weight, alpha=recipe.weight_decay), grad.sum(dim=1, keepdim=True))
        for value, slope, moment in zip((self.weight, self.bias), slopes, self.momentum, strict=True):
            before = None if mask is None else moment.clone()
            moment.mul_(recipe.momentum).add_(slope)
            step = slope.add(moment, alpha=recipe.momentum) if recipe.nesterov else moment
            value.sub_(step if mask is None else step * mask, alpha=rate)
            if before is not None and mask is not None:
                moment.copy_(torch.where(mask > 0, moment, before))

    def _report_logits(self, logits: Tensor, batch: Tensor) -> None:
        """Pass the mean logits of the heads that are trained on a row to the observer."""
        assert self.observe is not None
        member = (~self.held_out)[batch].T.float().to(self.device)  # (H, B)
        mean = (logits.view(self.classes, self.heads, -1) * member).sum(dim=1) / member.sum(dim=0)
        self.observe(mean.T, batch)

    # Between epochs: out-of-fold scores, and the sieve.

    def logits(self, rows: slice, view: int) -> Tensor:
        """Return the logits of all heads for one view, (K, H, B), on the device."""
        return (self.weight @ self.features[rows, view].T + self.bias).view(self.classes, self.heads, -1)

    def held_out_probabilities(self, logits: Tensor, rows: slice) -> Tensor:
        """Return the probabilities (K, P, B) in float64, from the head of each partition that holds the row out."""
        own = self.held_out_head[rows].T.expand(self.classes, -1, -1).to(self.device)
        return in_float64_on(logits.gather(1, own)).softmax(dim=0)

    def blocks(self) -> Iterator[slice]:
        """Yield slices of rows, each small enough for the probabilities of all heads."""
        size = max(1, BLOCK_VALUES // (self.heads * self.classes))
        return (slice(begin, min(begin + size, self.rows)) for begin in range(0, self.rows, size))

    def score(self, *, sieve: bool, add_to: Tensor | None = None) -> HeadScores:
        """Score every row with the heads that hold it out, and for the `sieve` with every head; over both views.

        The probabilities, the mean over the partitions, are added to `add_to` (N, K).
        """
        first, first_margin, margins = torch.zeros((3, self.rows), dtype=torch.float64)
        clean = torch.zeros_like(self.keep) if sieve else self.keep[:0]
        for rows, found in read_behind(self._launched(sieve=sieve)):
            mean_held_out, margins[rows], first[rows], first_margin[rows] = found[:4]
            if add_to is not None:
                add_to[rows] += mean_held_out.float()
            if sieve:
                clean[rows] = found[4]
        if not torch.isfinite(margins).all():
            raise TrainingError("The scores are not finite.", "Lower --lr or --beta.")
        return HeadScores(margins, first, first_margin, clean)

    def _launched(self, *, sieve: bool) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
        """Launch each block of rows, and yield its scores on the device: never the logits of all heads."""
        exact = self.recipe.exact_label
        for rows in self.blocks():
            views = [self.logits(rows, view) for view in ((0, 1) if self.flip else (0,))]
            held_out = torch.stack([self.held_out_probabilities(view, rows) for view in views]).mean(dim=0)  # (K, P, B)
            labels, mean_held_out = self.labels[rows].to(held_out.device), held_out.mean(dim=1).T
            found: tuple[Tensor, ...] = (
                mean_held_out,
                margin(mean_held_out, labels, self.recipe.loop_eps, exact=exact),
                held_out[:, 0].gather(0, labels[None]).squeeze(0),
                margin(held_out[:, 0].T, labels, self.sieve_eps, exact=exact),
            )
            if sieve:
                every = [view.softmax(dim=0) for view in views]  # (K, H, B)
                mean = (every[0] + every[1]).div_(2) if len(every) > 1 else every[0]
                own = self.labels[rows].to(self.device).repeat(self.heads)
                gaps = margin(mean.flatten(1), own, self.recipe.loop_eps, exact=exact, classes_first=True)
                found = (*found, (gaps < 0).view(self.heads, -1).T)
            yield rows, found

    def sieve(self, clean: Tensor, epoch: int) -> None:
        """Set v of every head for the next epoch. Raises an error if a head would lose every row."""
        keep = (clean | self.trusted[:, None]) & ~self.held_out
        if not keep.any(dim=0).all():
            raise TrainingError(
                f"Every row of a head was dropped after epoch {epoch}: no given label passes the threshold.",
                "Lengthen --warmup-epochs, lower --beta, or check that labels and images belong together.",
            )
        self.keep = keep

    def may_flip(self) -> bool:
        """Return True if heads trained on plain images only are about as accurate on mirrored images."""
        right = torch.empty((2, self.rows), dtype=torch.bool)
        for rows in self.blocks():
            for view in (0, 1):
                probs = self.held_out_probabilities(self.logits(rows, view), rows).mean(dim=1)  # (K, B)
                right[view, rows] = probs.argmax(dim=0).cpu() == self.labels[rows]
        return flipping_is_harmless(right[0], right[1])

    # Results.

    def head(self) -> Head:
        """Return the mean of all heads, as one linear layer."""
        weight = self.weight.view(self.classes, self.heads, self.width).mean(dim=1).cpu()  # (K, Q)
        bias = self.bias.view(self.classes, self.heads).mean(dim=1).cpu()
        return Head(*self.projection.to_feature_layer(weight, bias), flip=bool(self.flip))

    def scores(self, probs: Tensor, scored: HeadScores) -> TrainedScores:
        """Return the out-of-fold scores of every row, averaged over the last epochs."""
        schedule = self.schedule
        spent = max(1, schedule.epochs - schedule.sieve_start + 1)
        return TrainedScores(
            probs=probs.numpy(),
            flagged_epochs=(self.dropped / spent).numpy(),
            prior=self.prior.numpy(),
            beta=schedule.beta(schedule.epochs),
            history=list(self.history),
            facts=TrainingFacts(
                warmup_epochs=schedule.warmup,
                epochs=schedule.epochs,
                sieve_start=schedule.sieve_start,
                flip=bool(self.flip),
                held_out=self.rows,
                held_out_agreement=[],
                loop_eps=self.recipe.loop_eps,
                heads=self.heads,
                temperature=None if self.noise_model is None else self.noise_model.temperature,
                strength=None if self.noise_model is None else self.noise_model.strength,
            ),
            saved_model_scores=torch.stack((scored.first, (scored.first_margin >= 0).double()), dim=1).numpy(),
            margin_history=list(self.margin_history[: self.scorings].numpy()),
            out_of_fold=True,
            sieve_eps=self.sieve_eps,
            noise_model=self.noise_model,
        )
