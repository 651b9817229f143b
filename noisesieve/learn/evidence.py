"""What a training was, and what its choices were made from: epochs, agreements, facts."""

from __future__ import annotations

from dataclasses import dataclass, field

from noisesieve.core.records import Scores
from noisesieve.learn.recipes import HeadRecipe


@dataclass(frozen=True)
class EpochRow:
    """One row of history.parquet."""

    epoch: int
    phase: str
    beta: float
    learning_rate: float
    train_loss: float | None
    kept: int
    flagged: int
    undecided: int
    steps: int
    skipped_steps: int
    train_seconds: float
    score_seconds: float
    images_per_second: float


@dataclass(frozen=True)
class Agreement:
    """How often the given label is predicted for rows that the predictor was not trained on."""

    agreement: float
    class_agreement: float  # the mean over the classes

    @property
    def score(self) -> float:
        """What depths and loss are chosen by: it needs no truth."""
        return (self.agreement + self.class_agreement) / 2


@dataclass(frozen=True)
class DepthEvidence(Agreement):
    """The agreement of least squares on some depths of a network."""

    depths: list[str]


@dataclass(frozen=True)
class LossEvidence(Agreement):
    """The agreement of heads that were trained with some loss."""

    beta: float
    prior: str
    weight_decay: float
    loop_eps: float

    def is_of(self, recipe: HeadRecipe) -> bool:
        """Return True if this is the loss of a recipe."""
        own = (self.beta, self.prior, self.weight_decay, self.loop_eps)
        return own == (recipe.beta, recipe.prior, recipe.weight_decay, recipe.loop_eps)


@dataclass(frozen=True)
class JudgeEvidence:
    """How often a model predicts the given label of rows that it was not trained on."""

    judge: str  # network or heads
    agreement: float


@dataclass(frozen=True)
class TrainingFacts:
    """What was chosen during training."""

    warmup_epochs: int
    epochs: int
    sieve_start: int
    flip: bool
    held_out: int  # rows that chose the length of the warm-up; on the frozen path all rows are scored out of fold
    held_out_agreement: list[float]  # mean probability of their given labels, at each evaluation
    loop_eps: float
    heads: int | None = None  # None: a network was trained
    groups: int | None = None  # groups of two or more rows that stay in one fold; None: a network was trained
    grouped_rows: int | None = None  # rows in such groups
    temperature: float | None = None  # of the noise model; None: a network was trained
    strength: float | None = None  # of the prior of its transition
    compared_depths: list[DepthEvidence] | None = None  # what the depths of the features were chosen from
    compared_losses: list[LossEvidence] | None = None  # what beta, prior and weight decay were chosen from
    held_out_accuracy: float | None = None  # of a network on the held-out rows' given labels, after the warm-up
    compared_judges: list[JudgeEvidence] | None = None  # the model that decides comes first


@dataclass(frozen=True, kw_only=True)
class TrainedScores(Scores):
    """The scores of a training, with its history and what was chosen during it."""

    history: list[EpochRow] = field(default_factory=list)
    facts: TrainingFacts
