"""The methods side by side: the same pictures, network, schedule, augmentation, flips and seed for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noisesieve.bench import peers
from noisesieve.errors import Stopped
from noisesieve.learn.embed import embed
from noisesieve.learn.feed import Feed
from noisesieve.learn.lesson import Lesson
from noisesieve.learn.loop import Loop
from noisesieve.learn.state import State
from noisesieve.learn.world import World
from noisesieve.records import Bools, Floats, Ints, Scores
from noisesieve.settings import Recipe
from noisesieve.sieve.formulas import PAPER_EPS
from noisesieve.sieve.judge import judge
from noisesieve.watch import Watcher

NEVER = 10**6  # an epoch that no schedule reaches


@dataclass(frozen=True)
class Finding:
    """What one method says of every row, and what it cost."""

    suspicion: Floats  # (N,) larger is more suspicious
    flagged: Bools  # (N,)
    seconds: float
    passes: float  # training passes over the data
    probability: Floats | None = None  # (N,) that the label is wrong, where the method says one


@dataclass
class Branch:
    """A checkpoint store in memory: remembers where the warm-up ended, and starts others from there.

    Until then every training here is plain cross-entropy: it is done once, and its seconds count for each.
    """

    warm: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        return self.warm

    def save(self, number: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        ended = facts["warmup"] is not None and facts["epoch"] == facts["warmup"] + 1
        if self.warm is None and ended and facts["step"] == 0:
            self.warm = {name: value.detach().clone() for name, value in tensors.items()}, facts


@dataclass(frozen=True)
class Training:
    """A finished training."""

    state: State | None  # the network and all that training changes; None: heads on frozen features
    scores: Scores

    def seconds(self, *, score_share: float = 1.0) -> float:
        """Time spent on training and scoring, the shared warm-up included."""
        history = self.scores.history
        return float(sum(row["train_seconds"] + score_share * row["score_seconds"] for row in history))

    def passes(self, rows: int) -> float:
        """Training images seen, in datasets."""
        return float(sum(row["images_per_second"] * row["train_seconds"] for row in self.scores.history) / rows)


@dataclass
class Contest:
    """One dataset and one recipe. Trainings that several methods need are done once."""

    lesson: Lesson
    recipe: Recipe
    world: World
    watcher: Watcher
    stop: Callable[[], Stopped | None]
    branch: Branch = field(default_factory=Branch)
    warmup: int = 0  # its length, once a training has found it
    flip: bool = False

    @property
    def shares(self) -> bool:
        """May the warm-up be shared? Not where the sieve or the averaging already begins within it."""
        recipe = self.recipe
        begins = min(recipe.sieve_start - 1, recipe.epochs - recipe.average_epochs)
        return 0 < recipe.warmup_epochs < begins

    def train(self, recipe: Recipe, *, observe: Callable[[Tensor, Tensor], None] | None = None) -> Training:
        """Train on all rows, from the shared warm-up where there is one."""
        found = self._run(self.lesson, recipe, self.branch if self.shares else None, observe)
        assert found.state is not None
        assert found.state.warmup is not None
        self.warmup, self.flip = found.state.warmup, bool(found.state.flip)
        return found

    def train_without(self, held: Ints, recipe: Recipe) -> Training:
        """Train from scratch on all rows but some, and score all."""
        return self._run(replace(self.lesson, aside=torch.from_numpy(held)), recipe, None, None)

    def _run(
        self,
        lesson: Lesson,
        recipe: Recipe,
        branch: Branch | None,
        observe: Callable[[Tensor, Tensor], None] | None,
    ) -> Training:
        world, watcher = self.world, self.watcher
        return Training(
            *Loop(
                lesson, recipe, world=world, watcher=watcher, checkpoints=branch, stop=self.stop, observe=observe
            ).run()
        )

    @property
    def plain_recipe(self) -> Recipe:
        """Cross-entropy on all rows, with the same schedule."""
        return replace(self.recipe, beta=0.0, settle_epochs=0, sieve_start=NEVER)

    @cached_property
    def margins(self) -> peers.MarginSum:
        """The running margins of the plain training, for AUM."""
        return peers.MarginSum(self.lesson.labels)

    @cached_property
    def plain(self) -> Training:
        """Plain cross-entropy. Runs before all others: AUM has to see it from the first step."""
        return self.train(self.plain_recipe, observe=self.margins.add)

    def judged(self, training: Training, recipe: Recipe) -> Finding:
        """The closed-form verdict and the ranking of a training."""
        labels, start = self.lesson.labels.numpy(), time.monotonic()
        verdicts = judge(training.scores, labels, eps=recipe.sieve_eps, trusted=np.zeros(len(labels), dtype=np.bool_))
        spent = time.monotonic() - start
        found = self.finding(-verdicts.label_probability, verdicts.corrupted, training, spent)
        return replace(found, probability=verdicts.corruption_probability)

    def finding(self, suspicion: Floats, flagged: Bools, training: Training, more_seconds: float = 0.0) -> Finding:
        """A method that rests on one training."""
        return Finding(suspicion, flagged, training.seconds() + more_seconds, training.passes(len(self.lesson)))

    def neighbours_training(self) -> Training:
        """The training whose features vote."""
        return self.plain

    def embeddings(self) -> Tensor:
        """What plain training sees of every row, (N, D)."""
        state = self.plain.state
        assert state is not None
        feed = Feed(self.lesson.pixels, self.world.device)
        return embed(state.average, feed, len(self.lesson), flip=bool(state.flip))

    def out_of_fold(self) -> tuple[Floats, float, float]:
        """Probabilities by plain trainings that never saw the row, their seconds, and their passes over the data."""
        if not self.warmup:
            _ = self.plain  # the folds get its warm-up and its flips
        labels = self.lesson.labels.numpy()
        recipe, folds = self.fixed(), peers.folds(labels, peers.FOLDS, seed=self.recipe.seed)
        probs: Floats = np.zeros((len(labels), self.lesson.classes))
        seconds = passes = 0.0
        for i, held in enumerate(folds):
            self.watcher.note(f"cleanlab: fold {i + 1} of {peers.FOLDS}")
            training = self.train_without(held, recipe)
            probs[held] = training.scores.probs[held]
            seconds += training.seconds(score_share=len(held) / len(labels))  # all rows are scored, the fold is needed
            passes += training.passes(len(labels))
        return probs, seconds, passes

    def fixed(self) -> Recipe:
        """The plain recipe with the warm-up and the flips that the shared warm-up found, for the folds."""
        saved = self.recipe.warmup_epochs - self.warmup
        return replace(
            self.plain_recipe,
            epochs=self.recipe.epochs - saved,
            warmup_epochs=self.warmup,
            adaptive_warmup=False,
            flip=self.flip,
        )


def noisesieve(contest: Contest) -> Finding:
    """`noisesieve scan`, with the settings of this bench."""
    return contest.judged(contest.train(contest.recipe), contest.recipe)


def paper(contest: Contest) -> Finding:
    """The paper's rule: its floor in the loop and for the verdict, and no second opinion."""
    recipe = replace(contest.recipe, settle_epochs=0, loop_eps=PAPER_EPS, adaptive_eps=False, sieve_eps=PAPER_EPS)
    return contest.judged(contest.train(recipe), recipe)


def cross_entropy(contest: Contest) -> Finding:
    """Plain cross-entropy, ranked by the loss; the verdict is the same closed form."""
    return contest.judged(contest.plain, contest.recipe)


def sieve_only(contest: Contest) -> Finding:
    """The dynamic sieve without the regularizer: the paper's ablation."""
    recipe = replace(contest.recipe, beta=0.0, settle_epochs=0)
    return contest.judged(contest.train(recipe), recipe)


def area_under_margin(contest: Contest) -> Finding:
    """AUM: the mean margin of the given label over plain training; flagged below zero."""
    plain, mean = contest.plain, contest.margins.mean()
    return contest.finding(-mean, mean < 0, plain)


def neighbours(contest: Contest) -> Finding:
    """A vote of the nearest neighbours in feature space; flagged where another class has more votes."""
    training, start = contest.neighbours_training(), time.monotonic()
    suspicion, flagged = peers.vote(contest.embeddings(), contest.lesson.labels, contest.lesson.classes)
    return contest.finding(suspicion, flagged, training, time.monotonic() - start)


def cleanlab(contest: Contest) -> Finding:
    """The real cleanlab on out-of-fold probabilities."""
    probs, seconds, passes = contest.out_of_fold()
    start = time.monotonic()
    suspicion, flagged = peers.cleanlab_issues(contest.lesson.labels.numpy(), probs)
    return Finding(suspicion, flagged, seconds + time.monotonic() - start, passes)


METHODS: dict[str, Callable[[Contest], Finding]] = {
    "noisesieve": noisesieve,
    "paper": paper,
    "ce": cross_entropy,
    "ce-sieve": sieve_only,
    "aum": area_under_margin,
    "knn": neighbours,
    "cleanlab": cleanlab,
}
NEED_PLAIN = {"ce", "aum", "knn"}
