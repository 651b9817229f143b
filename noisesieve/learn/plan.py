"""Plan a training: the preset, adapted to the data and the device, with the user's options on top."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from noisesieve.core.errors import UsageError
from noisesieve.core.records import Ints
from noisesieve.learn.networks.backbones import LITE
from noisesieve.learn.networks.pretrained import IMAGENET, NONE
from noisesieve.learn.networks.timm_net import facts_of, fitting_size, is_timm
from noisesieve.learn.presets import PRESET_RECIPES, PRETRAINED_SIZES, frozen
from noisesieve.learn.recipes import HeadRecipe, NetworkRecipe, Recipe
from noisesieve.learn.training_settings import TrainingOptions
from noisesieve.sieve.formulas import PAPER_EPS, largest_beta, own_weight

SIZES = (16, 24, 32, 48, 64, 96, 128, 160, 224)
BODY_LR = 0.1  # learning rate of pretrained layers, as a share of the head's
SCALED_STEPS, SCALED_RISE = 200, 5.0  # of an epoch with --scale-batch, and epochs over which its rate rises
AUTO_SIZED = ("auto", "paper")  # presets whose backbone and image size are chosen from the data and the device


def plan(options: TrainingOptions, *, rows: int, classes: int, longest_sides: Ints, device: str) -> Recipe:
    """Return the recipe for a dataset on a device. The user's options override the preset."""
    recipe = _with_options(_base(options, rows, classes, longest_sides, device), options)
    return _with_scaled_batch(recipe, rows) if options.scale_batch else recipe


def _with_scaled_batch(recipe: Recipe, rows: int) -> Recipe:
    """Return the recipe with a batch so large that an epoch has SCALED_STEPS steps, if that is larger.

    The learning rate grows by the square root, as the noise of a mean gradient falls, and rises over more epochs.
    """
    if not isinstance(recipe, NetworkRecipe) or recipe.epoch_steps:
        raise UsageError("--scale-batch: only for a network that sees every row in an epoch.", "Leave it out.")
    factor = rows // SCALED_STEPS / recipe.batch_size
    if factor <= 1:
        return recipe
    batch = int(recipe.batch_size * factor)
    return replace(recipe, batch_size=batch, lr=recipe.lr * factor**0.5, lr_rise=SCALED_RISE)


def plan_heads(options: TrainingOptions, *, rows: int, classes: int, name: str) -> HeadRecipe:
    """Return the recipe of heads on vectors that the user has made."""
    recipe = replace(frozen(rows, classes), backbone=name, image_size=0, depths=(name,), flip=False)
    planned = _with_options(recipe, replace(options, backbone=None, image_size=None, flip=None))
    assert isinstance(planned, HeadRecipe)
    return planned


def plan_compared_heads(
    options: TrainingOptions, *, rows: int, classes: int, longest_sides: Ints, device: str
) -> HeadRecipe | None:
    """Return the recipe of the heads on frozen features that are scored beside a network on a GPU, or None.

    They take seconds there, and with few images they may know better than a network that was trained on these alone.
    """
    wanted = asks_for_nothing(options) and is_gpu(device) if options.compare_heads is None else options.compare_heads
    if not wanted or (options.freeze or choose_weights(options, device=device)[1]):
        return None
    recipe = plan(
        TrainingOptions(weights=LITE, freeze=True, flip=options.flip, seed=options.seed),
        rows=rows,
        classes=classes,
        longest_sides=longest_sides,
        device=device,
    )
    return recipe if isinstance(recipe, HeadRecipe) else None


def image_size(options: TrainingOptions, *, longest_sides: Ints, device: str) -> int:
    """Return the training size, which is needed for decoding, before the rest is planned."""
    planned = _base(options, 1, 2, longest_sides, device)
    size = options.image_size or planned.image_size
    return fitting_size(planned.backbone, size) if is_timm(planned.backbone) else size


def is_gpu(device: str) -> bool:
    """Return True for a device on which a network is trained by default."""
    return device != "cpu"


def asks_for_nothing(options: TrainingOptions) -> bool:
    """Return True if no option asks for a certain network, for certain weights, or for a full training."""
    plain = options.preset == "auto" and options.backbone is None and options.weights is None and options.freeze is None
    full = options.settle_epochs is not None or options.mixup or options.balanced or options.epoch_steps
    return plain and options.score_pass in (None, "eval") and not full


def choose_weights(options: TrainingOptions, *, device: str) -> tuple[str, bool]:
    """Return the initial weights, and whether all layers but the last are frozen.

    By default they are frozen on a CPU, for images of any size.
    """
    if asks_for_nothing(options) and not is_gpu(device):
        return LITE, True
    if is_timm(options.weights) or is_timm(options.backbone):  # frozen unless the user wants otherwise
        return options.weights or str(options.backbone), options.freeze is not False and options.weights != NONE
    return options.weights or (LITE if options.freeze else NONE), bool(options.freeze)


def backbone_of(options: TrainingOptions, weights: str, device: str) -> str:
    """Return the backbone: the user's choice, else one that fits the weights."""
    if options.backbone is not None or weights == LITE:
        return options.backbone or LITE
    if is_timm(weights):
        return weights
    if options.preset not in AUTO_SIZED:
        return PRESET_RECIPES[options.preset](1, SIZES[-1], device).backbone
    return "resnet18" if device == "cpu" else "resnet34"


def _base(options: TrainingOptions, rows: int, classes: int, longest_sides: Ints, device: str) -> Recipe:
    """Return the preset's recipe, adapted to the initial weights."""
    natural = _natural_size(longest_sides)
    weights, freeze = choose_weights(options, device=device)
    recipe: Recipe = PRESET_RECIPES[options.preset](rows, natural, device)
    if weights == NONE:
        return recipe
    if freeze:
        recipe = frozen(rows, classes)
    elif options.preset in AUTO_SIZED and isinstance(recipe, NetworkRecipe):
        recipe = replace(recipe, body_lr=BODY_LR)
    smallest, largest = PRETRAINED_SIZES
    backbone = backbone_of(options, weights, device)
    if is_timm(backbone):
        native = facts_of(backbone).size
        affordable = native if is_gpu(device) else min(native, largest)  # 518 px would take a CPU five times as long
        recipe = replace(recipe, image_size=fitting_size(backbone, affordable))
    elif options.preset in AUTO_SIZED:
        recipe = replace(recipe, image_size=min(largest, max(smallest if weights in (LITE, IMAGENET) else 0, natural)))
    return replace(recipe, backbone=backbone, weights=weights if is_timm(weights) else Path(weights).name)


def _natural_size(longest_sides: Ints) -> int:
    """Return the smallest of SIZES that is at least the longer side of the median image."""
    typical = float(np.median(longest_sides)) if len(longest_sides) else SIZES[-1]
    return next((size for size in SIZES if size >= typical), SIZES[-1])


def _with_options(recipe: Recipe, options: TrainingOptions) -> Recipe:
    """Apply the user's options. With `--epochs`, phases that were not given keep their share of the run."""
    chosen = {name: value for name in _PLAIN if (value := getattr(options, name)) is not None}
    scale = (options.epochs or recipe.epochs) / recipe.epochs
    epochs = options.epochs or recipe.epochs
    warmup = options.warmup_epochs
    if warmup is None:
        warmup = max(1, min(round(recipe.warmup_epochs * scale), epochs - 1))
    settle = options.settle_epochs
    if settle is None:  # the paper's rule has no CE snapshot
        settle = 0 if options.sieve_eps == PAPER_EPS else round(recipe.settle_epochs * scale)
    ramp = options.ramp_epochs if options.ramp_epochs is not None else round(recipe.ramp_epochs * scale)
    lead = (recipe.sieve_start - recipe.warmup_epochs) / (recipe.epochs - recipe.warmup_epochs)
    sieve_start = options.sieve_start or min(epochs, warmup + max(1, round(lead * (epochs - warmup))))
    if options.epochs is None and options.warmup_epochs is not None:
        epochs = max(epochs - recipe.warmup_epochs, 1) + warmup  # a longer warm-up does not shorten the sieve
        sieve_start = options.sieve_start or recipe.sieve_start - recipe.warmup_epochs + warmup
    if options.settle_epochs is None:
        settle = min(settle, max(0, sieve_start - warmup - 2)) if warmup else 0
    changes = {
        **chosen,
        "epochs": epochs,
        "warmup_epochs": warmup,
        "settle_epochs": settle,
        "ramp_epochs": ramp,
        "sieve_start": max(1, sieve_start),
        "lr_steps": tuple(round(step * scale) for step in recipe.lr_steps),
    }
    if isinstance(recipe, NetworkRecipe):
        fixed = options.warmup_epochs is not None or options.sieve_start is not None
        changes |= {
            "adaptive_warmup": recipe.adaptive_warmup and not fixed,
            "adaptive_eps": recipe.adaptive_eps and options.loop_eps is None,
            "adaptive_beta": recipe.adaptive_beta and options.beta is None,
        }
        if recipe.divide_at is not None:
            changes["divide_at"] = max(sieve_start - 1, round(recipe.divide_at * scale))
    if isinstance(recipe, HeadRecipe):
        changes |= {
            "adaptive_beta": recipe.adaptive_beta and options.beta is None,
            "adaptive_loop_eps": recipe.adaptive_loop_eps and options.loop_eps is None,
            "adaptive_eps": recipe.adaptive_eps and options.sieve_eps is None,
        }
    if isinstance(recipe, HeadRecipe):
        _refuse_for_heads(options)
        changes.pop("score_pass", None)
    planned = replace(recipe, **changes)
    if is_timm(planned.backbone):
        planned = replace(planned, image_size=fitting_size(planned.backbone, planned.image_size))
    _check(planned)
    return planned


_PLAIN = (
    "backbone",
    "image_size",
    "beta",
    "batch_size",
    "lr",
    "flip",
    "mixup",
    "balanced",
    "epoch_steps",
    "loop_eps",
    "sieve_eps",
    "score_pass",
    "seed",
)


# Options of a network that is trained.
NETWORK_ONLY = ("mixup", "balanced", "epoch_steps", "settle_epochs", "scale_batch", "compare_heads")


def _refuse_for_heads(options: TrainingOptions) -> None:
    """Refuse options that heads on frozen features, or on vectors, do not have."""
    given = [name for name in NETWORK_ONLY if getattr(options, name)]
    given += ["score_pass"] * (options.score_pass not in (None, "eval"))
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise UsageError(
            f"{flag}: only for a network that is trained, and here heads on frozen features are.",
            "Leave it out, or train the network: --no-freeze",
        )


def _check(recipe: Recipe) -> None:
    """Refuse phases that do not fit each other."""
    if recipe.warmup_epochs >= recipe.epochs:
        raise UsageError(
            f"--warmup-epochs {recipe.warmup_epochs} leaves none of {recipe.epochs} epochs for the sieve.",
            "Raise --epochs or lower --warmup-epochs.",
        )
    if recipe.sieve_start > recipe.epochs:
        raise UsageError(f"--sieve-start {recipe.sieve_start} is after the last epoch, {recipe.epochs}.")
    if recipe.settle_epochs and recipe.sieve_start <= recipe.warmup_epochs + recipe.settle_epochs:
        raise UsageError(
            f"--settle-epochs {recipe.settle_epochs}: the sieve starts before they end.",
            "Lower it, or raise --sieve-start.",
        )
    if isinstance(recipe, NetworkRecipe) and recipe.mixup and recipe.score_pass != "eval":
        raise UsageError(
            f"--mixup with --score-pass {recipe.score_pass}: mixed images cannot be scored.", "Leave one of them out."
        )
    if recipe.beta > 1 and recipe.warmup_epochs == 0:
        raise UsageError(
            "--warmup-epochs 0 with beta above 1 reinforces the random predictions of a new network.",
            "Give at least one epoch of warm-up.",
        )


def fit_beta(recipe: Recipe, counts: Ints, classes: list[str]) -> tuple[Recipe, str | None]:
    """Lower beta of a network where one class is large, and say so; the paper's presets are only warned about.

    CR takes beta * prior[y] from the weight of a row's own label. For a class above 1 / beta nothing is left of it, and
    the training calls this class wrong. Heads choose their beta from the data instead.
    """
    if isinstance(recipe, HeadRecipe) and recipe.adaptive_beta:
        return recipe, None
    uniform = recipe.balanced if isinstance(recipe, NetworkRecipe) else recipe.prior == "uniform"
    shares = np.full(len(counts), 1 / len(counts)) if uniform else counts / counts.sum()
    largest = int(shares.argmax())
    share = f"{shares[largest]:.0%}"
    large = f"Every class counts {share}" if uniform else f"Class '{classes[largest]}' has {share} of the labels"
    if isinstance(recipe, NetworkRecipe) and recipe.adaptive_beta:
        beta = float(f"{largest_beta(float(shares[largest])):.2g}")
        if beta >= recipe.beta:
            return recipe, None
        message = f"{large}: beta is lowered from {recipe.beta:g} to {beta:g}, so that they still count."
        return replace(recipe, beta=beta), message
    if own_weight(float(shares[largest]), recipe.beta) < 0:
        return recipe, f"{large}, more than 1 / beta: many right ones may be flagged. A lower --beta prevents it."
    return recipe, None
