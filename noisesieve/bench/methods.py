"""The compared methods. All use the same images, network, schedule, augmentation, flips and seed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from noisesieve.bench import peers
from noisesieve.core.records import Bools, Floats, Ints
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.checkpoint import Checkpoint
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.evidence import TrainedScores
from noisesieve.learn.loop import Loop
from noisesieve.learn.networks.embed import embed
from noisesieve.learn.presets import paper_rule
from noisesieve.learn.recipes import NetworkRecipe, Recipe
from noisesieve.learn.state import TrainingState
from noisesieve.learn.training_data import TrainingData
from noisesieve.report.report_settings import MIN_PROBABILITY
from noisesieve.sieve.decide import decide

NEVER = 10**6  # an epoch after the end of every schedule


@dataclass(frozen=True)
class MethodResult:
    """The output of one method for every row, and its cost."""

    suspicion: Floats  # (N,) larger is more suspicious
    flagged: Bools  # (N,)
    seconds: float
    passes: float  # training passes over the data
    probability: Floats | None = None  # (N,) P(label wrong), if the method gives one

    @property
    def shown(self) -> Bools:
        """(N,) what a reviewer would be shown: flagged rows, without those that are probably right."""
        return self.flagged if self.probability is None else self.flagged & (self.probability >= MIN_PROBABILITY)


@dataclass
class SharedWarmup:
    """A checkpoint store in memory that keeps the end of the warm-up, so that further trainings start there.

    Up to that point every training is plain cross-entropy. It runs once, and its seconds count for each method.
    """

    warm: Checkpoint | None = None

    def latest(self, rows: int) -> Checkpoint | None:
        return self.warm

    def wait(self) -> None:
        pass

    def save(self, number: int, checkpoint: Checkpoint) -> None:
        facts = checkpoint.facts
        ended = facts["warmup"] is not None and facts["epoch"] == facts["warmup"] + 1
        if self.warm is None and ended and facts["step"] == 0:
            self.warm = checkpoint


@dataclass(frozen=True)
class TrainingResult:
    """A finished training."""

    state: TrainingState | None  # None: heads on frozen features
    scores: TrainedScores

    def seconds(self, *, score_share: float = 1.0) -> float:
        """Return the time spent on training and scoring, including the shared warm-up."""
        history = self.scores.history
        return float(sum(row.train_seconds + score_share * row.score_seconds for row in history))

    def passes(self, rows: int) -> float:
        """Return the number of training passes over the dataset."""
        return float(sum(row.images_per_second * row.train_seconds for row in self.scores.history) / rows)


@dataclass
class Comparison:
    """One dataset and one recipe. Trainings that several methods need run once."""

    training_data: TrainingData
    recipe: Recipe
    session: TrainingSession
    shared_warmup: SharedWarmup = field(default_factory=SharedWarmup)
    warmup: int = 0  # length of the warm-up, as the first training chose it
    flip: bool = False
    truth: tuple[Bools, Bools] | None = None  # (N,) rows with a known right label, and which of those are wrong

    @property
    def can_share_warmup(self) -> bool:
        """True if the warm-up can be shared: neither the sieve nor the averaging starts within it."""
        recipe = self.recipe
        begins = min(recipe.sieve_start - 1, recipe.epochs - recipe.average_epochs)
        return 0 < recipe.warmup_epochs < begins

    def train(self, recipe: Recipe, *, observe: Callable[[Tensor, Tensor], None] | None = None) -> TrainingResult:
        """Train on all rows, starting from the shared warm-up if there is one."""
        result = self._run(self.training_data, recipe, self.shared_warmup if self.can_share_warmup else None, observe)
        assert result.state is not None
        assert result.state.warmup is not None
        self.warmup, self.flip = result.state.warmup, bool(result.state.flip)
        return result

    def train_as_scan(self) -> TrainingResult:
        """Train all that the verdict and the rank of a scan come from."""
        return self.train(self.recipe)

    def train_without(self, held: Ints, recipe: Recipe) -> TrainingResult:
        """Train from scratch on all rows but `held`, and score all rows."""
        return self._run(replace(self.training_data, score_only=torch.from_numpy(held)), recipe, None, None)

    def _run(
        self,
        training_data: TrainingData,
        recipe: Recipe,
        shared_warmup: SharedWarmup | None,
        observe: Callable[[Tensor, Tensor], None] | None,
    ) -> TrainingResult:
        assert isinstance(recipe, NetworkRecipe)
        loop = Loop(training_data, recipe, self.session, checkpoints=shared_warmup, observe=observe)
        return TrainingResult(*loop.run())

    @property
    def plain_recipe(self) -> Recipe:
        """Cross-entropy on all rows, with the same schedule."""
        return replace(self.recipe, beta=0.0, settle_epochs=0, sieve_start=NEVER)

    @cached_property
    def margins(self) -> peers.MarginSum:
        """The accumulated margins of the plain training, for AUM."""
        return peers.MarginSum(self.training_data.labels)

    def margin_threshold(self) -> float:
        """Return the mean margin below which AUM flags a row."""
        return 0.0

    @cached_property
    def plain(self) -> TrainingResult:
        """Plain cross-entropy. Runs before all others, since AUM needs the margins from the first step on."""
        return self.train(self.plain_recipe, observe=self.margins.add)

    def verdicts_of(self, training: TrainingResult, recipe: Recipe) -> MethodResult:
        """Return the closed-form verdict and the ranking of a training."""
        labels, start = self.training_data.labels.numpy(), time.monotonic()
        eps = training.scores.sieve_eps or recipe.sieve_eps
        verdicts = decide(
            training.scores, labels, eps=eps, trusted=np.zeros(len(labels), dtype=np.bool_), exact=recipe.exact_label
        )
        spent = time.monotonic() - start
        result = self.result(-verdicts.rank.astype(np.float64), verdicts.corrupted, training, spent)
        return replace(result, probability=verdicts.corruption_probability)

    def result(
        self, suspicion: Floats, flagged: Bools, training: TrainingResult, more_seconds: float = 0.0
    ) -> MethodResult:
        """Return the result of a method that uses one training."""
        passes = training.passes(len(self.training_data))
        return MethodResult(suspicion, flagged, training.seconds() + more_seconds, passes)

    def neighbours_training(self) -> TrainingResult:
        """Return the training whose features the k-NN vote uses."""
        return self.plain

    def embeddings(self) -> Tensor:
        """Return the features of every row from the plain training, (N, D)."""
        state = self.plain.state
        assert state is not None
        loader = BatchLoader(self.training_data.pixels, self.session.device)
        return embed(state.average, loader, len(self.training_data), flip=bool(state.flip))

    @cached_property
    def folds(self) -> tuple[Floats, float, float]:
        """What `out_of_fold` returns, computed once."""
        return self.out_of_fold()

    def out_of_fold(self) -> tuple[Floats, float, float]:
        """Return out-of-fold probabilities of plain trainings, their seconds, and their passes over the data."""
        if not self.warmup:
            _ = self.plain  # the folds use its length of warm-up and its flips
        labels = self.training_data.labels.numpy()
        recipe, folds = self.fold_recipe(), peers.stratified_folds(labels, peers.FOLDS, seed=self.recipe.seed)
        probs: Floats = np.zeros((len(labels), self.training_data.classes))
        seconds = passes = 0.0
        for i, held in enumerate(folds):
            self.session.note(f"cleanlab: fold {i + 1} of {peers.FOLDS}")
            training = self.train_without(held, recipe)
            probs[held] = training.scores.probs[held]
            seconds += training.seconds(
                score_share=len(held) / len(labels)
            )  # all rows are scored, but only the fold is needed
            passes += training.passes(len(labels))
        return probs, seconds, passes

    def fold_recipe(self) -> Recipe:
        """The plain recipe with the warm-up and the flips that the shared warm-up chose, for the folds."""
        saved = self.recipe.warmup_epochs - self.warmup
        plain = self.plain_recipe
        assert isinstance(plain, NetworkRecipe)
        return replace(
            plain,
            epochs=self.recipe.epochs - saved,
            warmup_epochs=self.warmup,
            adaptive_warmup=False,
            flip=self.flip,
        )


def noisesieve(comparison: Comparison) -> MethodResult:
    """`noisesieve scan` with the settings of this bench."""
    return comparison.verdicts_of(comparison.train_as_scan(), comparison.recipe)


def paper_sieve(comparison: Comparison) -> MethodResult:
    """The paper's own rule, as `--preset paper`."""
    recipe = paper_rule(comparison.recipe)
    return comparison.verdicts_of(comparison.train(recipe), recipe)


def cross_entropy(comparison: Comparison) -> MethodResult:
    """Plain cross-entropy, ranked by the loss, with the same closed-form verdict."""
    return comparison.verdicts_of(comparison.plain, comparison.recipe)


def sieve_only(comparison: Comparison) -> MethodResult:
    """The dynamic sieve without the regularizer, as in the paper's ablation."""
    recipe = replace(comparison.recipe, beta=0.0, settle_epochs=0)
    return comparison.verdicts_of(comparison.train(recipe), recipe)


def area_under_margin(comparison: Comparison) -> MethodResult:
    """AUM: the mean margin of the given label over plain training; flagged below a threshold."""
    plain, mean, start = comparison.plain, comparison.margins.mean(), time.monotonic()
    threshold = comparison.margin_threshold()
    return comparison.result(-mean, mean < threshold, plain, time.monotonic() - start)


def area_under_margin_zero(comparison: Comparison) -> MethodResult:
    """AUM, flagged where another class had the larger logit on average."""
    plain, mean = comparison.plain, comparison.margins.mean()
    return comparison.result(-mean, mean < 0, plain)


def neighbours(comparison: Comparison) -> MethodResult:
    """A vote of the nearest neighbours in feature space; flagged if another class has more votes."""
    training, start = comparison.neighbours_training(), time.monotonic()
    suspicion, flagged = peers.vote(
        comparison.embeddings(), comparison.training_data.labels, comparison.training_data.classes
    )
    return comparison.result(suspicion, flagged, training, time.monotonic() - start)


def best_cleanlab(comparison: Comparison) -> MethodResult:
    """cleanlab with whichever of its filters and quality scores is best here, by the truth: an upper bound."""
    assert comparison.truth is not None
    probs, seconds, passes = comparison.folds
    start, labels = time.monotonic(), comparison.training_data.labels.numpy()
    suspicion, flagged = peers.best_cleanlab_issues(labels, probs, *comparison.truth)
    return MethodResult(suspicion, flagged, seconds + time.monotonic() - start, passes)


def cleanlab(comparison: Comparison, *, score: str = peers.CLEANLAB_SCORES[0]) -> MethodResult:
    """cleanlab itself, on out-of-fold probabilities: its default filter, and one of its quality scores."""
    probs, seconds, passes = comparison.folds
    start = time.monotonic()
    suspicion, flagged = peers.cleanlab_issues(comparison.training_data.labels.numpy(), probs, score=score)
    return MethodResult(suspicion, flagged, seconds + time.monotonic() - start, passes)


def cleanlab_margin(comparison: Comparison) -> MethodResult:
    """cleanlab with its other quality score, the normalized margin."""
    return cleanlab(comparison, score=peers.CLEANLAB_SCORES[1])


METHODS: dict[str, Callable[[Comparison], MethodResult]] = {
    "noisesieve": noisesieve,
    "paper": paper_sieve,
    "ce": cross_entropy,
    "ce-sieve": sieve_only,
    "aum": area_under_margin,
    "aum-zero": area_under_margin_zero,
    "knn": neighbours,
    "cleanlab": cleanlab,
    "cleanlab-margin": cleanlab_margin,
    "cleanlab-best": best_cleanlab,
}
NEED_PLAIN = {"ce", "aum", "aum-zero", "knn"}
NEED_FOLDS = {"cleanlab", "cleanlab-margin", "cleanlab-best"}
