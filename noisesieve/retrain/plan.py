"""Plan a retraining from the run, the sizes of its two sets, and the user's options. No noise rate is needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from noisesieve.core.settings import Recipe, RetrainOptions
from noisesieve.retrain.strong_augment import policy_for

EPOCHS, CONTINUED_EPOCHS, FINE_TUNED_EPOCHS = 30, 12, 10  # from scratch, from the run's weights, if pretrained
LEAST_STEPS, MOST_EPOCHS = 1500, 200  # few rows get more epochs
FINE_TUNED_LR = 0.01
CONTINUED_LR = 0.2  # learning rate when continuing from the run's weights, as a share of the run's


@dataclass(frozen=True)
class RetrainRecipe:
    """All choices of one retraining."""

    network: Recipe  # backbone, sizes, rates, seed; its sieve settings are not used
    epochs: int
    warmup_epochs: float  # of the learning rate
    unlabelled_batch: int  # images of the corrupted set per batch of the clean set; 0: none
    weight: float  # of the consistency loss
    target: str  # current, epoch-start or ema
    start: str  # scratch or run
    policy: str

    def passes(self, labelled: int, unlabelled: int) -> int:
        """Return the number of images in all forward passes; an unlabelled image counts twice, once per view."""
        steps = max(1, labelled // self.network.batch_size)
        extra = 2 * self.unlabelled_batch if unlabelled else 0
        return self.epochs * steps * (min(labelled, self.network.batch_size) + extra)


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
    network = replace(
        run,
        epochs=epochs,
        warmup_epochs=0,
        settle_epochs=0,
        ramp_epochs=0,
        sieve_start=1,
        batch_size=batch,
        lr=options.lr or _rate(run, preset, start, fine=fine),
        clip_norm=options.clip_norm,
        frozen=False,
        flip=flip,
        mixup=0.0,
        balanced=False,
        epoch_steps=None,
        ema_epochs=run.ema_epochs or 0.5,
        adaptive_warmup=False,
        adaptive_eps=False,
        body_lr=1.0,
        seed=options.seed,
        nesterov=True,
        weight_decay=5e-4,
    )
    return RetrainRecipe(
        network=network,
        epochs=epochs,
        warmup_epochs=options.warmup_epochs if options.warmup_epochs is not None else min(5.0, epochs / 10),
        unlabelled_batch=max(1, round(batch * ratio)) if unlabelled and ratio else 0,
        weight=options.weight if options.weight is not None else share,
        target=options.target,
        start=start,
        policy=policy_for(run.image_size),
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


def plan_baseline(recipe: RetrainRecipe, run: Recipe, *, rows: int, passes: int) -> RetrainRecipe:
    """Return plain cross-entropy on all rows for the same number of images, from the same kind of start."""
    if recipe.start == "run" and run.weights == "none":
        recipe = replace(recipe, start="scratch", network=replace(recipe.network, lr=run.lr))
    size = min(rows, recipe.network.batch_size)
    epochs = max(1, -(-passes // (rows // size * size)))  # an incomplete last batch is left out
    return replace(
        recipe, network=replace(recipe.network, epochs=epochs), epochs=epochs, unlabelled_batch=0, weight=0.0
    )


def describe_retraining(recipe: RetrainRecipe, clean: int, corrupted: int) -> str:
    """Return the recipe as one line of text."""
    network = recipe.network
    unlabelled = f", {recipe.unlabelled_batch} unlabelled per batch" if recipe.unlabelled_batch else ""
    return (
        f"{clean:,} labelled and {corrupted:,} unlabelled images: {network.backbone} at {network.image_size} px "
        f"from {'the run' if recipe.start == 'run' else 'scratch'}, {recipe.epochs} epochs, batch {network.batch_size}"
        f"{unlabelled}, lr {network.lr:g}, consistency {recipe.weight:.2g} ({recipe.policy}, target {recipe.target})"
    )


def recipe_to_document(recipe: RetrainRecipe) -> dict[str, Any]:
    """Return the recipe as plain data, for the other ranks and for retrain.json."""
    return {**vars(recipe), "network": vars(recipe.network)}


def recipe_from_document(document: dict[str, Any]) -> RetrainRecipe:
    """Undo `recipe_to_document`."""
    network = {**document["network"], "lr_steps": tuple(document["network"]["lr_steps"])}
    return RetrainRecipe(**{**document, "network": Recipe(**network)})
