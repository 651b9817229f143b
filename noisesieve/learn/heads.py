"""The alternate search on frozen features: linear heads, trained side by side, that judge only rows they never saw.

Each of `head_seeds` partitions cuts the rows into `folds`; a head trains on all folds but its own, with its own sieve,
and judges its own. On a few thousand pictures a head that judged its training rows would have learnt their labels by
heart. All heads are one matrix product, classes first, (K, H, B), so that the softmax runs along memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from noisesieve.errors import TrainingError
from noisesieve.learn.feed import make_deterministic
from noisesieve.learn.folds import owners, single
from noisesieve.learn.lens import Lens
from noisesieve.learn.lesson import generator, shuffled_batches
from noisesieve.learn.losses import training_loss
from noisesieve.learn.schedule import Timeline
from noisesieve.learn.warmup import flipping_is_harmless
from noisesieve.records import Scores
from noisesieve.settings import Recipe
from noisesieve.sieve.formulas import margin, undecided
from noisesieve.watch import Stop, Watcher

FEATURE_BYTES = 2 * 2048 * 2  # a row, at most: two views of 2,048 halves
BLOCK_VALUES = 2**24  # probabilities at a time while scoring


@dataclass(frozen=True)
class Head:
    """One linear layer on the backbone's own features: the mean of all heads."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)
    flip: bool


@dataclass(frozen=True)
class Said:
    """What a scoring told: by heads that never saw the row, and by every head."""

    probs: Tensor  # (N, K) float64, the mean over the partitions
    first: Tensor  # (N,) float64: the given label's, by the first partition's heads alone
    first_margin: Tensor  # (N,) theirs, with the verdict's floor
    clean: Tensor  # (N, H) bool: passes this head's sieve


class Heads:
    """One training of all heads. `run` reads in order; everything else is a step of it."""

    def __init__(
        self,
        features: Tensor,  # (N, V, D)
        labels: Tensor,
        classes: int,
        trusted: Tensor,
        recipe: Recipe,
        *,
        device: torch.device,
        watcher: Watcher,
        stop: Stop,
        contents: Tensor | None = None,  # (N,) rows with the same number are the same picture; None: all are different
        observe: Callable[[Tensor, Tensor], None] | None = None,  # mean logits (B, K) and rows of every step
    ) -> None:
        make_deterministic(device)
        self.recipe, self.device, self.watcher, self.stop, self.observe = recipe, device, watcher, stop, observe
        self.timeline = Timeline(recipe, recipe.warmup_epochs)
        self.labels, self.trusted, self.classes, self.rows = labels, trusted, classes, len(labels)
        self.lens = Lens.of(features[:, 0], classes=classes, seed=recipe.seed)
        self.seen = torch.stack([self.lens.through(view) for view in features.unbind(1)], dim=1).to(device)  # (N, V, Q)
        self.width = self.seen.shape[2]
        self.prior = torch.bincount(labels, minlength=classes).double() / self.rows
        contents = torch.arange(self.rows) if contents is None else contents
        self.owner = owners(labels, contents, folds=recipe.folds, seeds=recipe.head_seeds, seed=recipe.seed)
        self.heads = recipe.folds * recipe.head_seeds
        self.held = torch.zeros((self.rows, self.heads), dtype=torch.bool).scatter_(1, self.owner, True)
        self.held[single(labels, contents)] = False  # or no head would know that the class exists
        self.keep = ~self.held  # (N, H): takes part in this head's training
        self.weight = torch.zeros((classes * self.heads, self.width), device=device)
        self.bias = torch.zeros((classes * self.heads, 1), device=device)
        self.momentum = [torch.zeros_like(self.weight), torch.zeros_like(self.bias)]
        self.flip: bool | None = recipe.flip if features.shape[1] > 1 else False
        self.dropped = torch.zeros(self.rows, dtype=torch.float64)
        self.course: list[Tensor] = []
        self.history: list[dict[str, object]] = []

    def run(self) -> tuple[Head, Scores]:
        """Train, score and sieve until the last epoch."""
        timeline, total, counted, said = self.timeline, torch.zeros(0), 0, None
        self.watcher.stage("training", timeline.epochs * self.rows)
        for epoch in range(1, timeline.epochs + 1):
            start = time.monotonic()
            loss, steps, skipped = self.train_epoch(epoch)
            trained = time.monotonic()
            last, counts = epoch == timeline.epochs, epoch > timeline.epochs - self.recipe.average_epochs
            kept, edge, flagged = int(self._takes_part().sum()), 0, 0
            if epoch >= timeline.sieve_start:
                self.dropped += (~self._takes_part()).double()
            if epoch == timeline.warmup and self.flip is None:
                self.flip = self.may_flip()
            if counts or timeline.scores_after(epoch):
                said = self.score()
                margins = margin(said.probs, self.labels, self.recipe.loop_eps)
                self.course.append(margins.float())
                edge, flagged = undecided(margins), int((margins >= 0).sum())
                if counts:
                    total, counted = (total + said.probs if counted else said.probs.clone()), counted + 1
                if not last and epoch + 1 >= timeline.sieve_start:
                    self.sieve(said.clean, epoch)
            self.history.append(
                {
                    "epoch": epoch,
                    "phase": timeline.phase(epoch),
                    "beta": timeline.beta(epoch),
                    "learning_rate": timeline.learning_rate(epoch, (steps - 1) / steps),
                    "train_loss": loss,
                    "kept": kept,
                    "flagged": flagged,
                    "undecided": edge,
                    "steps": steps,
                    "skipped_steps": skipped,
                    "train_seconds": trained - start,
                    "score_seconds": time.monotonic() - trained,
                    "images_per_second": kept * self.heads * self._share / max(1e-9, trained - start),
                }
            )
        self.watcher.finish()
        assert said is not None
        return self.head(), self.scores(total / counted, said)

    @property
    def _share(self) -> float:
        """Of the rows that one head trains on."""
        return float((~self.held).double().mean())

    def _takes_part(self) -> Tensor:
        """(N,): rows that most of the heads that may train on them do train on."""
        return self.keep.sum(dim=1) * 2 > (~self.held).sum(dim=1)

    # Training: one step of all heads at once.

    def train_epoch(self, epoch: int) -> tuple[float | None, int, int]:
        """One pass over all rows: the mean loss, the steps, and those in which some head had no row."""
        recipe, beta = self.recipe, self.timeline.beta(epoch)
        nobody = self.labels.new_zeros(0)
        batches = shuffled_batches(
            self.rows, nobody, size=recipe.batch_size, generator=generator(recipe.seed, epoch, 0)
        )
        losses, skipped, prior = [], 0, self.prior.float().to(self.device)
        kept = int(self._takes_part().sum())
        for step, batch in enumerate(batches):
            if (asked := self.stop()) is not None:
                raise asked
            views = self._views(batch, generator(recipe.seed, epoch, step + 1))
            weights = self.keep[batch].T.float().to(self.device)  # (H, B)
            count = weights.sum(dim=1)  # (H,)
            logits = (self.weight @ views.T + self.bias).view(self.classes, -1).requires_grad_()  # (K, H * B)
            given = self.labels[batch].repeat(self.heads).to(self.device)
            each = training_loss(logits, given, prior, beta, classes_first=True).view(self.heads, -1)
            loss = (each * weights).sum(dim=1) / count.clamp(min=1)  # (H,)
            (grad,) = torch.autograd.grad(loss.sum(), logits)
            self._update(
                views, grad.view(-1, len(batch)), count > 0, self.timeline.learning_rate(epoch, step / len(batches))
            )
            skipped += int((count == 0).any())
            seen = loss.detach()[count > 0]
            if len(seen):
                losses.append(float(seen.mean()))
                if not math.isfinite(losses[-1]):
                    raise TrainingError(
                        f"The loss is not finite in epoch {epoch}, step {step + 1}.", "Lower --lr or --beta."
                    )
            if self.observe is not None:
                self._tell(logits.detach(), batch)
            self.watcher.advance(
                len(batch),
                phase=self.timeline.phase(epoch),
                epoch=epoch,
                epochs=self.timeline.epochs,
                beta=beta,
                kept=kept,
                flagged=self.rows - kept,
            )
        return sum(losses) / len(losses) if losses else None, len(batches), skipped

    def _views(self, batch: Tensor, dice: torch.Generator) -> Tensor:
        """Features (B, D) of a batch: of either view where pictures may be mirrored, else of the plain one."""
        view = torch.zeros(len(batch), dtype=torch.int64)
        if self.flip:
            view = torch.randint(0, 2, (len(batch),), generator=dice)
        return self.seen[batch.to(self.device), view.to(self.device)]

    def _update(self, views: Tensor, grad: Tensor, active: Tensor, rate: float) -> None:
        """Nesterov's step with weight decay, as in torch's SGD. A head without a row in the batch stays as it is."""
        recipe = self.recipe
        mask = active.repeat(self.classes).float()[:, None]  # (K * H, 1)
        for value, slope, moment in zip(
            (self.weight, self.bias), (grad @ views, grad.sum(dim=1, keepdim=True)), self.momentum, strict=True
        ):
            slope = slope.add(value, alpha=recipe.weight_decay)
            fresh = moment * recipe.momentum + slope
            step = slope.add(fresh, alpha=recipe.momentum) if recipe.nesterov else fresh
            moment.lerp_(fresh, mask)
            value.sub_(step * mask, alpha=rate)

    def _tell(self, logits: Tensor, batch: Tensor) -> None:
        """The observer hears what the heads that train on a row say of it, on average."""
        assert self.observe is not None
        member = (~self.held)[batch].T.float().to(self.device)  # (H, B)
        spoken = (logits.view(self.classes, self.heads, -1) * member).sum(dim=1) / member.sum(dim=0)
        self.observe(spoken.T, batch)

    # Between epochs: what the heads say of rows they never saw, and the sieve.

    def logits(self, rows: slice, view: int) -> Tensor:
        """(K, H, B)."""
        return (self.weight @ self.seen[rows, view].T + self.bias).cpu().view(self.classes, self.heads, -1)

    def unseen(self, logits: Tensor, rows: slice) -> Tensor:
        """(K, P, B) in float64: the probabilities by the one head of each partition that never saw the row."""
        own = self.owner[rows].T.expand(self.classes, -1, -1)
        return logits.gather(1, own).double().softmax(dim=0)

    def blocks(self) -> Iterator[slice]:
        """The rows, as many at a time as their probabilities allow."""
        size = max(1, BLOCK_VALUES // (self.heads * self.classes))
        return (slice(begin, min(begin + size, self.rows)) for begin in range(0, self.rows, size))

    def score(self) -> Said:
        """Every row by every head, both views where pictures may be mirrored."""
        probs = torch.zeros((self.rows, self.classes), dtype=torch.float64)
        first, first_margin = torch.zeros(self.rows, dtype=torch.float64), torch.zeros(self.rows, dtype=torch.float64)
        clean = torch.zeros_like(self.keep)
        for rows in self.blocks():
            views = [self.logits(rows, view) for view in ((0, 1) if self.flip else (0,))]
            alone = torch.stack([self.unseen(view, rows) for view in views]).mean(dim=0)  # (K, P, B)
            every = torch.stack([view.softmax(dim=0) for view in views]).mean(dim=0)  # (K, H, B)
            labels = self.labels[rows]
            probs[rows] = alone.mean(dim=1).T
            first[rows] = alone[:, 0].gather(0, labels[None]).squeeze(0)
            first_margin[rows] = margin(alone[:, 0].T, labels, self.recipe.sieve_eps)
            gaps = margin(every.flatten(1).T, labels.repeat(self.heads), self.recipe.loop_eps)
            clean[rows] = (gaps < 0).view(self.heads, -1).T
        if not torch.isfinite(probs).all():
            raise TrainingError("The scores are not finite.", "Lower --lr or --beta.")
        return Said(probs, first, first_margin, clean)

    def sieve(self, clean: Tensor, epoch: int) -> None:
        """Every head's v for the next epoch; dropping everything is a diagnosis, not a verdict."""
        keep = (clean | self.trusted[:, None]) & ~self.held
        if not keep.any(dim=0).all():
            raise TrainingError(
                f"Every row of a head was sieved out after epoch {epoch}: it predicts no given label.",
                "Lengthen --warmup-epochs, lower --beta, or check that labels and images belong together.",
            )
        self.keep = keep

    def may_flip(self) -> bool:
        """Are mirrored pictures as good, to heads that never saw one?"""
        plain, mirrored = (
            torch.cat([self.unseen(self.logits(rows, view), rows).mean(dim=1).T for rows in self.blocks()])
            for view in (0, 1)
        )
        return flipping_is_harmless(plain, mirrored, self.labels)

    # What is left.

    def head(self) -> Head:
        """All heads as one: a mean of linear layers is a linear layer."""
        weight = self.weight.view(self.classes, self.heads, self.width).mean(dim=1).cpu()  # (K, Q)
        bias = self.bias.view(self.classes, self.heads).mean(dim=1).cpu()
        return Head(*self.lens.unfold(weight, bias), flip=bool(self.flip))

    def scores(self, probs: Tensor, said: Said) -> Scores:
        """What the last epochs say of every row, by heads that never saw it."""
        timeline = self.timeline
        spent = max(1, timeline.epochs - timeline.sieve_start + 1)
        return Scores(
            probs=probs.numpy(),
            flagged_epochs=(self.dropped / spent).numpy(),
            prior=self.prior.numpy(),
            beta=timeline.beta(timeline.epochs),
            history=list(self.history),
            facts={
                "warmup_epochs": timeline.warmup,
                "epochs": timeline.epochs,
                "sieve_start": timeline.sieve_start,
                "flip": bool(self.flip),
                "held_out": self.rows,
                "held_out_agreement": [],
                "loop_eps": self.recipe.loop_eps,
                "heads": self.heads,
            },
            saved=torch.stack((said.first, (said.first_margin >= 0).double()), dim=1).numpy(),
            course=torch.stack(self.course).numpy(),
            out_of_fold=True,
        )
