"""What a retraining does, from the run, the sizes of its two sets and the wishes. Never from a known noise rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from noisesieve.retrain.strong import policy_for
from noisesieve.settings import Recipe, RetrainWishes

EPOCHS, AGAIN_EPOCHS, FINE_EPOCHS = 30, 12, 10  # from scratch, from the run's weights, of a pretrained backbone
LEAST_STEPS, MOST_EPOCHS = 1500, 200  # few rows get more epochs
FINE_LR = 0.01
AGAIN = 0.2  # share of the rate where training goes on from the run's weights


@dataclass(frozen=True)
class RetrainRecipe:
    """A retraining, fully decided."""

    network: Recipe  # backbone, sizes, rates, seed; what it says of the sieve is not used
    epochs: int
    warmup_epochs: float  # over which the rate rises
    unlabelled_batch: int  # pictures of the corrupted set beside a batch of the clean one; 0: none
    weight: float  # of the consistency
    target: str  # current, epoch-start or ema
    start: str  # scratch or run
    policy: str

    def passes(self, labelled: int, unlabelled: int) -> int:
        """Pictures through the network, both views of an unlabelled one counted."""
        steps = max(1, labelled // self.network.batch_size)
        beside = 2 * self.unlabelled_batch if unlabelled else 0
        return self.epochs * steps * (min(labelled, self.network.batch_size) + beside)


def plan(
    run: Recipe, wishes: RetrainWishes, *, preset: str, labelled: int, unlabelled: int, flip: bool
) -> RetrainRecipe:
    """Both the weight and the share of unlabelled pictures follow |H| / |L|, at most 1."""
    share = min(1.0, unlabelled / labelled)
    many = labelled // run.batch_size >= LEAST_STEPS // EPOCHS  # few rows are soon learnt anew, without old mistakes
    start = wishes.start or ("run" if preset == "auto" and (many or run.weights != "none") else "scratch")
    fine = run.weights != "none" and start == "run"
    batch = wishes.batch_size or (320 if preset == "cifar" else 32 if fine else run.batch_size)
    batch = min(batch, labelled)
    epochs = wishes.epochs or _epochs(preset, start, fine=fine, steps=max(1, labelled // batch))
    ratio = wishes.ratio if wishes.ratio is not None else share
    network = replace(
        run,
        epochs=epochs,
        warmup_epochs=0,
        settle_epochs=0,
        ramp_epochs=0,
        sieve_start=1,
        batch_size=batch,
        lr=wishes.lr or _rate(run, preset, start, fine=fine),
        clip_norm=wishes.clip_norm,
        frozen=False,
        flip=flip,
        mixup=0.0,
        balanced=False,
        epoch_steps=None,
        ema_epochs=run.ema_epochs or 0.5,
        adaptive_warmup=False,
        adaptive_eps=False,
        body_lr=1.0,
        seed=wishes.seed,
        nesterov=True,
        weight_decay=5e-4,
    )
    return RetrainRecipe(
        network=network,
        epochs=epochs,
        warmup_epochs=wishes.warmup_epochs if wishes.warmup_epochs is not None else min(5.0, epochs / 10),
        unlabelled_batch=max(1, round(batch * ratio)) if unlabelled and ratio else 0,
        weight=wishes.weight if wishes.weight is not None else share,
        target=wishes.target,
        start=start,
        policy=policy_for(run.image_size),
    )


def _epochs(preset: str, start: str, *, fine: bool, steps: int) -> int:
    if preset == "cifar":
        return 1600
    if start == "run":
        return FINE_EPOCHS if fine else AGAIN_EPOCHS
    return min(MOST_EPOCHS, max(EPOCHS, -(-LEAST_STEPS // steps)))


def _rate(run: Recipe, preset: str, start: str, *, fine: bool) -> float:
    if fine:
        return FINE_LR
    if preset == "cifar":
        return 0.03
    return run.lr * AGAIN if start == "run" else run.lr


def baseline(recipe: RetrainRecipe, run: Recipe, *, rows: int, passes: int) -> RetrainRecipe:
    """Plain cross-entropy on all rows for as many pictures: from scratch, or as the run from pretrained weights."""
    if recipe.start == "run" and run.weights == "none":
        recipe = replace(recipe, start="scratch", network=replace(recipe.network, lr=run.lr))
    size = min(rows, recipe.network.batch_size)
    epochs = max(1, -(-passes // (rows // size * size)))  # an incomplete last batch is left out
    return replace(
        recipe, network=replace(recipe.network, epochs=epochs), epochs=epochs, unlabelled_batch=0, weight=0.0
    )


def to_document(recipe: RetrainRecipe) -> dict[str, Any]:
    """As plain data, for the other ranks."""
    return {**vars(recipe), "network": vars(recipe.network)}


def from_document(document: dict[str, Any]) -> RetrainRecipe:
    """The recipe that `to_document` described."""
    network = {**document["network"], "lr_steps": tuple(document["network"]["lr_steps"])}
    return RetrainRecipe(**{**document, "network": Recipe(**network)})
