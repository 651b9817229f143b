"""What `--preset` means here: every choice of training, from the wishes, the data and the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from noisesieve.errors import UsageError
from noisesieve.learn.backbones import LITE
from noisesieve.learn.pretrained import IMAGENET, NONE, lite_installed
from noisesieve.learn.world import World
from noisesieve.records import Ints
from noisesieve.settings import Recipe, Wishes
from noisesieve.sieve.formulas import PAPER_EPS

SIZES = (16, 24, 32, 48, 64, 96, 128, 160, 224)
CPU_LARGEST = 32  # resnet8 sees 25 pixels at a time: more of them cost much and show it less
GPU_LARGEST = 128
PHOTO = 48  # pixels: from here on a picture shows what a pretrained network knows
PRETRAINED_SIZES = (128, 224)  # smaller pictures are enlarged for it, larger ones reduced
BODY_LR = 0.1  # share of the rate for pretrained layers
HEAD_STEPS = 240  # of training, at least
MANY_CLASSES = 100  # more of them make heads expensive: one partition must do
WATCH_STEPS = 30  # between two looks at the held-out rows, at least
EMA_STEPS = 20  # horizon of the averaged weights, at least


def plan(wishes: Wishes, *, rows: int, classes: int, longest_sides: Ints, device: str) -> Recipe:
    """The recipe that this dataset gets on this device; what the user asked for stands above all."""
    return _with_wishes(_base(wishes, rows, classes, longest_sides, device), wishes)


def image_size(wishes: Wishes, *, longest_sides: Ints, device: str) -> int:
    """The training size alone, for decoding."""
    return wishes.image_size or _base(wishes, 1, 2, longest_sides, device).image_size


def start(wishes: Wishes, *, longest_sides: Ints, device: str) -> tuple[str, bool]:
    """Which weights training starts from, and whether all but a head is frozen.

    Left alone, photos on a machine without a GPU get the frozen path where its extra is installed.
    """
    if wishes.weights is None and wishes.freeze is None:
        plain = wishes.preset == "auto" and wishes.backbone is None
        full = wishes.settle_epochs is not None or wishes.mixup or wishes.balanced or wishes.epoch_steps
        plain = plain and wishes.score_pass == "eval" and not full  # those are choices of a full training
        photos = len(longest_sides) > 0 and float(np.median(longest_sides)) >= PHOTO
        return (LITE, True) if plain and photos and device == "cpu" and lite_installed() else (NONE, False)
    return wishes.weights or (LITE if wishes.freeze else NONE), bool(wishes.freeze)


def backbone_of(wishes: Wishes, weights: str, device: str) -> str:
    """The backbone that these weights are for, where the user named none."""
    if wishes.backbone is not None or weights == LITE:
        return wishes.backbone or LITE
    if wishes.preset != "auto":
        return _PRESETS[wishes.preset](1, 2, SIZES[-1], device).backbone
    return "resnet18" if device == "cpu" else "resnet34"


def _base(wishes: Wishes, rows: int, classes: int, longest_sides: Ints, device: str) -> Recipe:
    """The preset's recipe, from the weights that were asked for."""
    natural = _natural_size(longest_sides)
    weights, frozen = start(wishes, longest_sides=longest_sides, device=device)
    recipe = _PRESETS[wishes.preset](rows, classes, natural, device)
    if weights == NONE:
        return recipe
    if frozen:
        recipe = _frozen(rows, classes)
    elif wishes.preset == "auto":
        recipe = replace(recipe, body_lr=BODY_LR)
    least, most = PRETRAINED_SIZES
    if wishes.preset == "auto":
        recipe = replace(recipe, image_size=min(most, max(least if weights in (LITE, IMAGENET) else 0, natural)))
    return replace(recipe, backbone=backbone_of(wishes, weights, device), weights=Path(weights).name)


def _natural_size(longest_sides: Ints) -> int:
    """The smallest size that shows the median picture whole."""
    typical = float(np.median(longest_sides)) if len(longest_sides) else SIZES[-1]
    return next((size for size in SIZES if size >= typical), SIZES[-1])


def _auto(rows: int, classes: int, natural: int, device: str) -> Recipe:
    """Minutes on two cores for a few thousand images; a full ResNet where there is a GPU."""
    gpu = device != "cpu"
    size = min(natural, GPU_LARGEST if gpu else CPU_LARGEST)
    batch = 32 if rows < 1500 else 64 if rows < 20_000 else 128
    steps = max(1, rows // batch)  # an epoch; learning takes steps, so few rows get more epochs
    watch = max(1, round(WATCH_STEPS / steps))
    warmup = max(30 if rows < 20_000 else 20, 15 * watch)
    settle, ramp, rest = 6 * watch, 8 * watch, 18 * watch
    return Recipe(
        backbone="resnet34" if gpu else "resnet8" if rows < 50_000 else "resnet20",
        image_size=size,
        epochs=warmup + settle + ramp + rest,
        warmup_epochs=warmup,
        settle_epochs=settle,
        ramp_epochs=ramp,
        sieve_start=warmup + settle + ramp // 2 + 1,
        batch_size=batch,
        lr=0.1,
        adaptive_warmup=True,
        adaptive_eps=True,
        watch_every=watch,
        ema_epochs=max(0.5, EMA_STEPS / steps),
    )


def _frozen(rows: int, classes: int) -> Recipe:
    """Linear heads on features, out of fold: seconds, so that every row is judged by heads that never saw it."""
    batch = 64 if rows < 1500 else 256
    epochs = min(200, max(30, -(-HEAD_STEPS // max(1, rows // batch))))
    return Recipe(
        backbone=LITE,
        image_size=PRETRAINED_SIZES[0],
        epochs=epochs,
        warmup_epochs=epochs * 3 // 10,
        ramp_epochs=epochs * 3 // 10,
        sieve_start=epochs // 2 + 1,
        batch_size=batch,
        lr=0.1,
        lr_schedule="cosine",
        weight_decay=2e-2,
        ema_epochs=0,
        loop_eps=1.0,
        sieve_eps=1e-3,
        frozen=True,
        folds=5,
        head_seeds=2 if classes <= MANY_CLASSES else 1,
    )


def _cifar(rows: int, classes: int, natural: int, device: str) -> Recipe:
    """The paper's recipe for CIFAR, its rule (eps 1e-8 in the loop and for the verdict) included."""
    return Recipe(
        backbone="resnet34",
        image_size=32,
        epochs=100,
        warmup_epochs=10,
        ramp_epochs=30,
        sieve_start=30,
        batch_size=64,
        lr=0.1,
        lr_schedule="steps",
        lr_steps=(50,),
        nesterov=False,
        flip=True,
        divide_at=40,
        ema_epochs=0,
        average_epochs=1,
        loop_eps=1e-8,
        sieve_eps=1e-8,
    )


def _clothing1m(rows: int, classes: int, natural: int, device: str) -> Recipe:
    """The paper's recipe for Clothing1M. Sieve start, momentum, weight decay and the mixup's alpha are ours."""
    return Recipe(
        backbone="resnet50",
        image_size=224,
        epochs=120,
        warmup_epochs=80,
        ramp_epochs=20,
        sieve_start=100,
        batch_size=32,
        lr=0.01,
        lr_schedule="steps",
        lr_steps=(30, 60, 90),
        beta=0.4,
        nesterov=False,
        weight_decay=1e-3,
        flip=True,
        mixup=4.0,
        balanced=True,
        epoch_steps=1000,
        ema_epochs=0,
        average_epochs=1,
        loop_eps=1e-8,
        sieve_eps=1e-8,
    )


_PRESETS = {"auto": _auto, "cifar": _cifar, "clothing1m": _clothing1m}


def _with_wishes(recipe: Recipe, wishes: Wishes) -> Recipe:
    """Overrides; a shorter or longer run keeps the proportions of what was not asked for."""
    chosen = {name: value for name in _PLAIN if (value := getattr(wishes, name)) is not None}
    scale = (wishes.epochs or recipe.epochs) / recipe.epochs
    epochs = wishes.epochs or recipe.epochs
    warmup = wishes.warmup_epochs
    if warmup is None:
        warmup = max(1, min(round(recipe.warmup_epochs * scale), epochs - 1))
    settle = wishes.settle_epochs
    if settle is None:  # the paper's rule is the regularized network's own word
        settle = 0 if wishes.sieve_eps == PAPER_EPS else round(recipe.settle_epochs * scale)
    ramp = wishes.ramp_epochs if wishes.ramp_epochs is not None else round(recipe.ramp_epochs * scale)
    lead = (recipe.sieve_start - recipe.warmup_epochs) / (recipe.epochs - recipe.warmup_epochs)
    start = wishes.sieve_start or min(epochs, warmup + max(1, round(lead * (epochs - warmup))))
    if wishes.epochs is None and wishes.warmup_epochs is not None:
        epochs = max(epochs - recipe.warmup_epochs, 1) + warmup  # a longer warm-up takes nothing from the sieve
        start = wishes.sieve_start or recipe.sieve_start - recipe.warmup_epochs + warmup
    if wishes.settle_epochs is None:
        settle = min(settle, max(0, start - warmup - 2)) if warmup else 0
    made = Recipe(
        **{
            **vars(recipe),
            **chosen,
            "epochs": epochs,
            "warmup_epochs": warmup,
            "settle_epochs": settle,
            "ramp_epochs": ramp,
            "sieve_start": max(1, start),
            "adaptive_eps": recipe.adaptive_eps and wishes.loop_eps is None,
            "divide_at": None if recipe.divide_at is None else max(start - 1, round(recipe.divide_at * scale)),
            "lr_steps": tuple(round(step * scale) for step in recipe.lr_steps),
            "adaptive_warmup": recipe.adaptive_warmup and wishes.warmup_epochs is None and wishes.sieve_start is None,
        }
    )
    _check(made)
    return made


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


def _check(recipe: Recipe) -> None:
    if recipe.warmup_epochs >= recipe.epochs:
        raise UsageError(
            f"--warmup-epochs {recipe.warmup_epochs} leaves nothing of {recipe.epochs} epochs for the sieve.",
            "Raise --epochs or lower --warmup-epochs.",
        )
    if recipe.sieve_start > recipe.epochs:
        raise UsageError(f"--sieve-start {recipe.sieve_start} lies behind the last epoch, {recipe.epochs}.")
    if recipe.settle_epochs and recipe.sieve_start <= recipe.warmup_epochs + recipe.settle_epochs:
        raise UsageError(
            f"--settle-epochs {recipe.settle_epochs}: the sieve starts before they are over.",
            "Lower it, or raise --sieve-start.",
        )
    if recipe.mixup and recipe.score_pass == "train":
        raise UsageError("--mixup with --score-pass train: mixed pictures cannot be scored.", "Leave one of them out.")
    if recipe.beta > 1 and recipe.warmup_epochs == 0:
        raise UsageError(
            "--warmup-epochs 0 with beta above 1 locks the first guesses in.", "Give at least one epoch of warm-up."
        )


def describe(recipe: Recipe, world: World) -> str:
    """The recipe in one line."""
    upto = "up to " if recipe.adaptive_warmup else ""
    flips = {True: "flips", False: "no flips", None: "flips if harmless"}[recipe.flip]
    ranks = f", {world.size} processes" if world.size > 1 else ""
    upto_eps = f"at most {recipe.loop_eps:g}" if recipe.adaptive_eps else f"{recipe.loop_eps:g}"
    settle = f"settle {recipe.settle_epochs}, " if recipe.settle_epochs else ""
    extras = f", mixup {recipe.mixup:g}" if recipe.mixup else ""
    extras += ", balanced" if recipe.balanced else ""
    extras += f", {recipe.epoch_steps:,} batches an epoch" if recipe.epoch_steps else ""
    origin = "" if recipe.weights == NONE or recipe.weights == recipe.backbone else f" ({recipe.weights})"
    heads = f"{recipe.folds * recipe.head_seeds} heads on frozen " if recipe.frozen else ""
    return (
        f"{heads}{recipe.backbone}{origin} at {recipe.image_size} px on {world.device.type}{ranks}, "
        f"{upto}{recipe.epochs} epochs (warm-up {upto}{recipe.warmup_epochs}, "
        f"{settle}ramp {recipe.ramp_epochs}, sieve from {recipe.sieve_start}), "
        f"batch {recipe.batch_size}, lr {recipe.lr:g}, beta {recipe.beta:g}, "
        f"eps {upto_eps} / {recipe.sieve_eps:g}, {flips}{extras}"
    )
