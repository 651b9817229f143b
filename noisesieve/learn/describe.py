"""A training in words: what will be done and why, and the recipe on one line."""

from __future__ import annotations

from dataclasses import replace

from noisesieve.learn.distributed import Processes
from noisesieve.learn.evidence import LossEvidence
from noisesieve.learn.networks.backbones import LITE
from noisesieve.learn.networks.pretrained import NONE
from noisesieve.learn.networks.timm_net import describe_depths, is_timm
from noisesieve.learn.plan import NETWORK_ONLY, asks_for_nothing
from noisesieve.learn.recipes import HeadRecipe, NetworkRecipe, Recipe
from noisesieve.learn.training_settings import TrainingOptions
from noisesieve.sieve.formulas import PAPER_EPS


def introduce(recipe: Recipe, options: TrainingOptions, *, compared_heads: HeadRecipe | None) -> str:
    """Return in plain words what will be done, and why."""
    if isinstance(recipe, HeadRecipe) and not recipe.image_size:
        return "Small classifiers learn your labels from your own embeddings."
    if isinstance(recipe, HeadRecipe):
        network = "EfficientNet-lite0 (ImageNet)" if recipe.weights == LITE else recipe.backbone
        what = f"features of a frozen {network} are computed once, and small classifiers are trained on them."
        if is_timm(recipe.backbone) and (limits := describe_depths(recipe.backbone)) is not None:
            what = f"{what} {limits}"
        if asks_for_nothing(options):
            return f"No GPU: {what} --weights none trains a ResNet instead."
        return what[0].upper() + what[1:]
    start = "from scratch" if recipe.weights == NONE else f"from {recipe.weights}"
    what = f"A {recipe.backbone} is trained on your images, {start}."
    if compared_heads is not None:
        what += " Classifiers on features of a frozen EfficientNet-lite0 are trained as well; the better one decides."
    return " ".join([what, *_side_effects(recipe, options)])


def _side_effects(recipe: NetworkRecipe, options: TrainingOptions) -> list[str]:
    """Return what an option changes beside what it names."""
    effects = []
    plain = replace(options, settle_epochs=None, mixup=None, balanced=None, epoch_steps=None, score_pass=None)
    if asks_for_nothing(plain) and not asks_for_nothing(options):
        named = [name for name in (*NETWORK_ONLY, "score_pass") if getattr(options, name) != getattr(plain, name)]
        flags = ", ".join("--" + name.replace("_", "-") for name in named)
        effects.append(f"({flags}: for a trained network only, so frozen features are not used.)")
    if options.sieve_eps == PAPER_EPS and options.settle_epochs is None and options.preset == "auto":
        effects.append("(--sieve-eps 1e-8, the paper's floor: the verdict uses no cross-entropy snapshot.)")
    return effects


def describe_loss(recipe: HeadRecipe, compared: list[LossEvidence]) -> str:
    """Return in plain words which loss was chosen for this dataset, and why."""
    best = next(evidence for evidence in compared if evidence.is_of(recipe))
    loss = "plain cross-entropy" if recipe.beta == 0 else f"confidence regularization (beta {recipe.beta:g})"
    prior = ", all classes weighted alike" if recipe.beta and recipe.prior == "uniform" else ""
    return f"Chosen for your labels: {loss}{prior}. It predicts {best.agreement:.1%} of the labels it was not shown."


def describe(recipe: Recipe, processes: Processes) -> str:
    """Return the recipe as one line of text."""
    network = recipe if isinstance(recipe, NetworkRecipe) else None
    upto = "up to " if network is not None and network.adaptive_warmup else ""
    flips = {True: "flips", False: "no flips", None: "flips if harmless"}[recipe.flip]
    ranks = f", {processes.size} processes" if processes.size > 1 else ""
    eps = f"at most {recipe.loop_eps:g}" if network is not None and network.adaptive_eps else f"{recipe.loop_eps:g}"
    verdict_eps = "chosen" if network is None and recipe.adaptive_eps else f"{recipe.sieve_eps:g}"
    beta = "chosen" if isinstance(recipe, HeadRecipe) and recipe.adaptive_beta else f"{recipe.beta:g}"
    settle = f"settle {recipe.settle_epochs}, " if recipe.settle_epochs else ""
    origin = "" if recipe.weights == NONE or recipe.weights == recipe.backbone else f" ({recipe.weights})"
    heads = f"{recipe.folds * recipe.head_seeds} heads on frozen " if isinstance(recipe, HeadRecipe) else ""
    size = f" at {recipe.image_size} px" if recipe.image_size else ""
    return (
        f"{heads}{recipe.backbone}{origin}{size} on {processes.device.type}{ranks}, "
        f"{upto}{recipe.epochs} epochs (warm-up {upto}{recipe.warmup_epochs}, "
        f"{settle}ramp {recipe.ramp_epochs}, sieve from {recipe.sieve_start}), "
        f"batch {recipe.batch_size}, lr {recipe.lr:g}, beta {beta}, "
        f"eps {eps} / {verdict_eps}, {flips}{_extras(network)}"
    )


def _extras(recipe: NetworkRecipe | None) -> str:
    """Return the parts of the description that most recipes do not have."""
    if recipe is None:
        return ""
    extras = f", mixup {recipe.mixup:g}" if recipe.mixup else ""
    extras += ", balanced" if recipe.balanced else ""
    return extras + (f", {recipe.epoch_steps:,} batches per epoch" if recipe.epoch_steps else "")
