"""Recipes: all choices of one training. A network, heads on frozen features, and a retraining each have their own."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from noisesieve.core.documents import from_json
from noisesieve.core.files import Document

LR_RISE = 2.0
LAST = "last"  # the depth of a network that every network has


@dataclass(frozen=True, kw_only=True)
class NetworkChoice:
    """What every training needs: the network, its initial weights, and the optimizer."""

    backbone: str
    image_size: int
    batch_size: int
    lr: float
    weights: str = "none"  # the initial weights: none, imagenet, lite0, or a file's name
    weights_sha256: str = ""
    depths: tuple[str, ...] = (LAST,)  # whose features the last layer gets; empty: chosen from the data
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay_biases: bool = True  # the weight decay also applies to biases and norm layers
    nesterov: bool = True
    flip: bool | None = None  # mirror images; None: tested on held-out rows during the warm-up
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class SieveSchedule(NetworkChoice):
    """A training with the sieve: its phases, beta, learning rate and floors. Epochs count from 1."""

    epochs: int
    warmup_epochs: int
    ramp_epochs: int
    sieve_start: int
    settle_epochs: int = 0  # epochs of cross-entropy after the warm-up, for the snapshot that the verdict combines
    beta: float = 2.0
    # "hold": constant in the warm-up, then a cosine over the settle epochs and another one over the rest;
    # "steps": divided by ten after each of lr_steps; "cosine": one cosine over all epochs
    lr_schedule: str = "hold"
    lr_steps: tuple[int, ...] = ()
    lr_rise: float = LR_RISE  # epochs of linear warm-up of the learning rate, for "hold"
    average_epochs: int = 5  # the verdict's probabilities are the mean over this many last epochs
    loop_eps: float = 1e-3
    sieve_eps: float = 0.3
    exact_label: bool = False  # True: the label's own term of loop and verdict has no floor, as in the authors' code
    lr_over_beta: bool = False  # True: the learning rate is divided by 1 + beta ("steps" only; "cosine" always is)


@dataclass(frozen=True, kw_only=True)
class NetworkRecipe(SieveSchedule):
    """A network that is trained with the sieve. With `adaptive_warmup` the warm-up may end earlier."""

    body_lr: float = 1.0  # learning rate of all layers but the last, as a share of `lr`
    clip_norm: float = 5.0
    ema_epochs: float = 0.5  # horizon of the averaged weights used for scoring; 0: no averaging
    adaptive_warmup: bool = False
    watch_every: int = 1  # epochs between two evaluations of the held-out rows
    mixup: float = 0.0  # alpha of the Beta distribution for mixup of kept rows; 0: no mixup
    balanced: bool = False  # True: batches draw all classes equally often, and the prior is uniform
    epoch_steps: int | None = None  # batches per epoch; None: every row once
    divide_at: int | None = None  # epoch whose clean / corrupted split `retrain` uses; None: the verdict
    opinion_weight: float = 0.3  # weight of the cross-entropy snapshot in the geometric mean
    adaptive_eps: bool = False  # True: loop_eps is lowered where snapshot and network disagree on the first suspects
    adaptive_beta: bool = False  # True: beta is lowered where one class has a large part of the rows
    recount_prior: bool = False  # True: the prior of CR is counted anew in each epoch, on the kept rows
    # How v is found. "eval": all rows after each epoch. "train": from the augmented batches, for the next epoch.
    # "step": from the forward pass of the step that uses it
    score_pass: str = "eval"
    regularizer: str = "confidence"  # or "entropy", which the ablation compares with

    @property
    def frozen(self) -> bool:
        return False

    def images_per_epoch(self, rows: int) -> int:
        """Return how many images an epoch over this many rows trains on; a last batch that is dropped is counted."""
        return self.epoch_steps * self.batch_size if self.epoch_steps else rows


@dataclass(frozen=True, kw_only=True)
class HeadRecipe(SieveSchedule):
    """Linear heads on features of a frozen network: every row is scored by heads that were not trained on it."""

    folds: int
    head_seeds: int  # number of partitions into folds; there are folds * head_seeds heads
    prior: str = "counted"  # of CR: the frequencies of the given labels, or "uniform"
    adaptive_beta: bool = False  # True: beta, prior and weight decay are chosen by agreement with the given labels
    adaptive_loop_eps: bool = False  # True: so is loop_eps, if beta is
    adaptive_eps: bool = False  # True: sieve_eps is chosen so that as many rows are flagged as are expected to be wrong

    @property
    def frozen(self) -> bool:
        return True


Recipe = NetworkRecipe | HeadRecipe


@dataclass(frozen=True, kw_only=True)
class RetrainRecipe(NetworkChoice):
    """A consistency training."""

    epochs: int
    warmup_epochs: float  # of the learning rate
    unlabelled_batch: int  # images of the corrupted set per batch of the clean set; 0: none
    weight: float  # of the consistency loss
    target: str  # current, epoch-start, ema, or batch: the same forward pass in training mode, as the authors' code
    start: str  # scratch or run
    policy: str  # of the strong augmentation
    labelled_view: str = "weak"  # augmentation of the labelled images: weak or strong
    lr_end: float = 0.01  # final learning rate, as a share of the peak
    clip_norm: float = 5.0
    ema_epochs: float = 0.5
    body_lr: float = 1.0

    def image_count(self, labelled: int, unlabelled: int) -> int:
        """Return the number of images in all forward passes; an unlabelled image counts twice, once per view."""
        steps = max(1, labelled // self.batch_size)
        extra = 2 * self.unlabelled_batch if unlabelled else 0
        return self.epochs * steps * (min(labelled, self.batch_size) + extra)


def recipe_to_document(recipe: Recipe) -> Document:
    """Return a recipe as JSON."""
    lists = {"lr_steps": list(recipe.lr_steps), "depths": list(recipe.depths)}
    document: Document = {**asdict(recipe), **lists, "frozen": recipe.frozen}
    if recipe.lr_rise == LR_RISE:  # earlier runs have no other, and are recognised by their recipe
        del document["lr_rise"]
    return document


def recipe_from_document(document: object) -> Recipe:
    """Undo `recipe_to_document`. Raises ValueError for a document of another kind."""
    values = from_json(dict[str, object], document, "recipe")
    frozen = from_json(bool, values.get("frozen"), "frozen")
    values = {"depths": [LAST], **values}  # older runs have only one
    return from_json(HeadRecipe, values, "recipe") if frozen else from_json(NetworkRecipe, values, "recipe")
