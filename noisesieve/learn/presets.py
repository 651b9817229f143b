"""The recipes behind `--preset`, before the user's options are applied. Where they deviate from the paper: README."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from noisesieve.learn.networks.backbones import LITE
from noisesieve.learn.recipes import HeadRecipe, NetworkRecipe, Recipe
from noisesieve.sieve.formulas import PAPER_EPS

CPU_LARGEST = 32  # resnet8's receptive field is 25 pixels: larger images cost more and gain little
GPU_LARGEST = 128
PRETRAINED_SIZES = (160, 224)  # smallest and largest image size for pretrained networks
HEAD_STEPS, HEAD_EPOCHS = 480, 10  # training steps and epochs of heads, at least
CE_DECAY = 0.3  # weight decay of the cross-entropy heads that only rank
MANY_CLASSES = 100  # with more classes heads use one partition instead of two, to save time
PAPER_BETA = 2.0
WATCH_STEPS = 30  # training steps between two evaluations of the held-out rows, at least
EMA_STEPS = 20  # horizon of the averaged weights in steps, at least


def auto(rows: int, natural: int, device: str) -> NetworkRecipe:
    """A small ResNet that trains in minutes on two cores for a few thousand images; ResNet-34 on a GPU."""
    gpu = device != "cpu"
    size = min(natural, GPU_LARGEST if gpu else CPU_LARGEST)
    batch = 32 if rows < 1500 else 64 if rows < 20_000 else 128
    steps = max(1, rows // batch)  # per epoch; few rows get more epochs, so that there are enough steps
    watch = max(1, round(WATCH_STEPS / steps))
    warmup = max(30 if rows < 20_000 else 20, 15 * watch)
    settle, ramp, rest = 6 * watch, 8 * watch, 18 * watch
    return NetworkRecipe(
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
        adaptive_beta=True,
        decay_biases=False,
        watch_every=watch,
        ema_epochs=max(0.5, EMA_STEPS / steps),
    )


def paper_rule(recipe: Recipe) -> Recipe:
    """Return a recipe with the paper's own rule.

    That is eps 1e-8 in loop and verdict, and the probabilities of the last epoch's network alone: no CE snapshot, no
    averaged weights, no average over epochs.
    """
    recipe = replace(
        recipe, settle_epochs=0, average_epochs=1, loop_eps=PAPER_EPS, sieve_eps=PAPER_EPS, exact_label=True
    )
    recipe = replace(recipe, adaptive_eps=False, adaptive_beta=False, beta=PAPER_BETA)
    if isinstance(recipe, NetworkRecipe):
        return replace(recipe, ema_epochs=0, decay_biases=True)
    return replace(recipe, prior="counted")


def paper(rows: int, natural: int, device: str) -> Recipe:
    """The paper's rule on any dataset: backbone, image size and number of epochs as in `auto`."""
    return paper_rule(auto(rows, natural, device))


def frozen(rows: int, classes: int) -> HeadRecipe:
    """Linear heads on frozen features; every row is scored by heads that were not trained on it."""
    batch = 64 if rows < 1500 else 256
    epochs = min(200, max(HEAD_EPOCHS, -(-HEAD_STEPS // max(1, rows // batch))))
    return HeadRecipe(
        backbone=LITE,
        image_size=PRETRAINED_SIZES[0],
        depths=(),
        epochs=epochs,
        warmup_epochs=epochs * 3 // 10,
        ramp_epochs=epochs * 3 // 10,
        sieve_start=epochs // 2 + 1,
        batch_size=batch,
        lr=0.1,
        lr_schedule="cosine",
        weight_decay=5e-2,
        loop_eps=1.0,
        sieve_eps=1e-3,
        folds=5,
        head_seeds=2 if classes <= MANY_CLASSES else 1,
        adaptive_beta=True,
        adaptive_loop_eps=True,
        adaptive_eps=True,
    )


def ce_recipe(recipe: HeadRecipe, *, flip: bool) -> HeadRecipe:
    """Return the recipe of the heads beside those of `recipe` that only help to rank: cross-entropy, and no sieve."""
    plain = replace(recipe, beta=0.0, prior="counted", weight_decay=CE_DECAY, sieve_start=recipe.epochs + 1, flip=flip)
    return replace(plain, adaptive_beta=False, adaptive_loop_eps=False, adaptive_eps=False)


def cifar(rows: int, natural: int, device: str) -> NetworkRecipe:
    """The paper's recipe for CIFAR."""
    return NetworkRecipe(
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
        loop_eps=PAPER_EPS,
        sieve_eps=PAPER_EPS,
        exact_label=True,
    )


def cifar_code(rows: int, natural: int, device: str) -> NetworkRecipe:
    """The recipe of the authors' published code for CIFAR, where it differs from the paper's text."""
    return replace(
        cifar(rows, natural, device),
        warmup_epochs=11,
        ramp_epochs=29,
        sieve_start=32,
        divide_at=41,
        momentum=0.0,
        weight_decay=0.0,
        lr_over_beta=True,
        recount_prior=True,
        score_pass="step",
    )


def clothing1m(rows: int, natural: int, device: str) -> NetworkRecipe:
    """The paper's recipe for Clothing1M. Sieve start, momentum, weight decay and mixup's alpha are our choices."""
    return NetworkRecipe(
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
        loop_eps=PAPER_EPS,
        sieve_eps=PAPER_EPS,
        exact_label=True,
    )


PRESET_RECIPES: dict[str, Callable[[int, int, str], Recipe]] = {
    "auto": auto,
    "paper": paper,
    "cifar": cifar,
    "cifar-code": cifar_code,
    "clothing1m": clothing1m,
}
