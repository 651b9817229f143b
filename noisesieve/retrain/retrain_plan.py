"""Plan a retraining from the run, the sizes of its two sets, and the user's options. No noise rate is needed."""

from __future__ import annotations

from dataclasses import replace

from noisesieve.core.text import duration
from noisesieve.learn.recipes import NetworkRecipe, Recipe, RetrainRecipe
from noisesieve.retrain.retrain_settings import RetrainOptions
from noisesieve.retrain.strong_augment import policy_for

EPOCHS, CONTINUED_EPOCHS, FINE_TUNED_EPOCHS = 30, 36, 10  # from scratch, from the run's weights, if pretrained
LEAST_STEPS, MOST_EPOCHS = 1500, 200  # few rows get more epochs
FINE_TUNED_LR = 0.01
CONTINUED_LR = 0.5  # learning rate when continuing from the run's weights, as a share of the run's


def plan_retraining(
    run: Recipe, options: RetrainOptions, *, preset: str, labelled: int, unlabelled: int, flip: bool
) -> RetrainRecipe:
    """Return the recipe. Weight and share of unlabelled images are |H| / |L|, at most 1 (H corrupted, L clean).

    With this weight the sum of the two mean losses is proportional to the paper's loss, which sums over all rows.
    """
    share = min(1.0, unlabelled / labelled)
    many = (
        labelled // run.batch_size >= LEAST_STEPS // EPOCHS
    )  # few rows are trained from scratch, without the scan's mistakes
    start = options.start or ("run" if preset == "auto" and (many or run.weights != "none") else "scratch")
    fine = run.weights != "none" and start == "run"
    batch = options.batch_size or (320 if preset == "cifar" else 32 if fine else run.batch_size)
    batch = min(batch, labelled)
    epochs = options.epochs or _epochs(preset, start, fine=fine, steps=max(1, labelled // batch))
    ratio = options.ratio if options.ratio is not None else share
    return RetrainRecipe(
        backbone=run.backbone,
        depths=run.depths,
        image_size=run.image_size,
        batch_size=batch,
        lr=options.lr or _rate(run, preset, start, fine=fine),
        weights=run.weights,
        weights_sha256=run.weights_sha256,
        flip=flip,
        seed=options.seed,
        epochs=epochs,
        warmup_epochs=options.warmup_epochs if options.warmup_epochs is not None else min(5.0, epochs / 10),
        unlabelled_batch=max(1, round(batch * ratio)) if unlabelled and ratio else 0,
        weight=options.weight if options.weight is not None else share,
        # As in the authors' code; on networks that were pretrained this was not measured.
        target=options.target or ("current" if fine else "batch"),
        labelled_view="weak" if fine else "strong",
        start=start,
        policy=policy_for(run.image_size),
        clip_norm=options.clip_norm,
        ema_epochs=(run.ema_epochs if isinstance(run, NetworkRecipe) else 0.0) or 0.5,
    )


def _epochs(preset: str, start: str, *, fine: bool, steps: int) -> int:
    if preset == "cifar":
        return 1600
    if start == "run":
        return FINE_TUNED_EPOCHS if fine else CONTINUED_EPOCHS
    return min(MOST_EPOCHS, max(EPOCHS, -(-LEAST_STEPS // steps)))


def _rate(run: Recipe, preset: str, start: str, *, fine: bool) -> float:
    if fine:
        return FINE_TUNED_LR
    if preset == "cifar":
        return 0.03
    return run.lr * CONTINUED_LR if start == "run" else run.lr


def without_consistency(recipe: RetrainRecipe, *, kept: int, rows: int) -> RetrainRecipe:
    """Return the recipe of a candidate on `rows` labelled rows: as many steps as with consistency on `kept` ones."""
    steps = recipe.epochs * max(1, kept // recipe.batch_size)
    epochs = max(1, round(steps / max(1, rows // recipe.batch_size)))
    return replace(recipe, epochs=epochs, unlabelled_batch=0, weight=0.0)


def describe_retraining(recipe: RetrainRecipe, clean: int, corrupted: int) -> str:
    """Return the recipe as one line of text."""
    unlabelled = f", {recipe.unlabelled_batch} unlabelled per batch" if recipe.unlabelled_batch else ""
    return (
        f"{clean:,} labelled and {corrupted:,} unlabelled images: {recipe.backbone} at {recipe.image_size} px "
        f"from {'the run' if recipe.start == 'run' else 'scratch'}, {recipe.epochs} epochs, batch {recipe.batch_size}"
        f"{unlabelled}, lr {recipe.lr:g}, consistency {recipe.weight:.2g} ({recipe.policy}, target {recipe.target})"
    )


def describe_cost(recipes: list[RetrainRecipe], rows: list[tuple[int, int]], rate: float | None) -> str:
    """Return what the trainings will cost: `rows` are the labelled and unlabelled ones, `rate` the scan's images/s."""
    images = [recipe.image_count(*counts) for recipe, counts in zip(recipes, rows, strict=True)]
    if len(images) > 1:
        images.append(max(images))  # the best is trained again, with all rows
    text = (
        f"{len(images)} trainings, at most {sum(images):,} images in all"
        if len(images) > 1
        else f"{images[0]:,} images"
    )
    return text + (f": about {duration(sum(images) / rate)} at the scan's speed" if rate else "")
