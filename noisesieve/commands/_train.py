"""The TRAIN stage of `scan`: a network, heads on frozen features, or both; the one that agrees better decides."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from noisesieve import __version__
from noisesieve.commands._dataset import Dataset
from noisesieve.commands._folds import groups_of
from noisesieve.commands._own_vectors import OwnVectors, features_of_vectors
from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.files import digest
from noisesieve.learn.checkpoint import Checkpoints
from noisesieve.learn.describe import describe_loss
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.evidence import JudgeEvidence, TrainedScores, TrainingFacts
from noisesieve.learn.frozen.choose import choose_depths, choose_loss, trained_rows
from noisesieve.learn.frozen.features import Features, compute_features
from noisesieve.learn.frozen.head_data import HeadData, Projected
from noisesieve.learn.frozen.ranked_heads import train_ranked_heads
from noisesieve.learn.loop import Loop
from noisesieve.learn.networks.pretrained import weights_file
from noisesieve.learn.recipes import HeadRecipe, NetworkRecipe, recipe_to_document
from noisesieve.learn.training_data import TrainingData, TrainingTask
from noisesieve.learn.warmup import held_out_rows
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.intervals import Z95
from noisesieve.report.model_card import TrainedWeights
from noisesieve.report.run import Identity, RunFolder, RunRecord
from noisesieve.sieve.decide import choose_floor


@dataclass(frozen=True)
class Trained:
    """The result of training."""

    dataset: Dataset  # with the recipe of the model that decides
    weights: TrainedWeights | None  # None: the scores are the user's own
    scores: TrainedScores


def train(
    dataset: Dataset,
    settings: ScanSettings,
    run: RunFolder,
    record: RunRecord,
    decoder: Decoder,
    session: TrainingSession,
) -> Trained:
    """Train as the dataset's recipe says: a network, heads on frozen features, or heads on the user's embeddings."""
    if dataset.vectors is not None:
        return _train_on_vectors(dataset, dataset.vectors, settings, session)
    if dataset.recipe.frozen:
        return _train_heads(dataset, settings, run, session)
    decoder.rest()  # a network may be trained for hours
    task = _training_task(dataset, run, record.identity)
    if session.processes.size > 1:
        task.save(run.checkpoints / "task")
        session.processes.share(str(run.checkpoints / "task"))
    trained = Trained(dataset, *train_network(task, session))
    if dataset.compared_heads is None:
        return trained
    return _compare_with_heads(trained, dataset.compared_heads, settings, run, decoder, session)


def _train_on_vectors(
    dataset: Dataset, vectors: OwnVectors, settings: ScanSettings, session: TrainingSession
) -> Trained:
    """Train heads on the user's embeddings; predictions are scores already."""
    if vectors.kind == "predictions":
        return _own_predictions(dataset, vectors, session)
    features = features_of_vectors(vectors, dataset.decoded.file_facts)
    return train_heads(dataset, features, settings, session)


def _own_predictions(dataset: Dataset, vectors: OwnVectors, session: TrainingSession) -> Trained:
    """Return the user's probabilities as scores: beta 0, the counted prior, the floor chosen from them."""
    recipe, probs, rows = dataset.recipe, vectors.values, len(vectors.values)
    assert isinstance(recipe, HeadRecipe)
    eps, noise_model = recipe.sieve_eps, None
    if recipe.adaptive_eps:
        given = torch.from_numpy(dataset.given_codes)
        eps, noise_model = choose_floor(torch.from_numpy(probs), given)
    counted = np.bincount(dataset.given_codes, minlength=len(vectors.classes)) / rows
    facts = TrainingFacts(
        warmup_epochs=0,
        epochs=0,
        sieve_start=0,
        flip=False,
        held_out=rows,
        held_out_agreement=[],
        loop_eps=recipe.loop_eps,
        temperature=None if noise_model is None else noise_model.temperature,
        strength=None if noise_model is None else noise_model.strength,
    )
    scores = TrainedScores(
        probs, None, counted, 0.0, facts=facts, out_of_fold=True, sieve_eps=eps, noise_model=noise_model
    )
    session.note("The closed form is applied to your probabilities; nothing is trained.")
    return Trained(replace(dataset, recipe=replace(recipe, sieve_eps=eps)), None, scores)


def _training_task(dataset: Dataset, run: RunFolder, identity: Identity) -> TrainingTask:
    """Return all that training needs."""
    recipe = dataset.recipe
    assert isinstance(recipe, NetworkRecipe)
    data = TrainingData(
        pixels=dataset.decoded.pixels,
        labels=torch.from_numpy(dataset.codes),
        classes=len(dataset.classes),
        trusted=torch.from_numpy(dataset.trusted),
        weights=dataset.weights,
        score_only=_kept_out(dataset),
    )
    mark = digest({**identity, "recipe": recipe_to_document(recipe), "version": __version__})
    return TrainingTask(data, recipe, run.checkpoints, mark)


def _kept_out(dataset: Dataset) -> Tensor:
    """Return the rows that network and heads are compared on, and that neither is trained on."""
    if dataset.compared_heads is None:
        return torch.zeros(0, dtype=torch.int64)
    return held_out_rows(torch.from_numpy(dataset.codes), seed=dataset.recipe.seed)


def train_network(task: TrainingTask, session: TrainingSession) -> tuple[TrainedWeights, TrainedScores]:
    """Train a network with the sieve, from the last checkpoint if there is one."""
    checkpoints = Checkpoints.of_rank(task.checkpoints, task.identity, session)
    with checkpoints:
        state, scores = Loop(task.data, task.recipe, session, checkpoints=checkpoints).run()
    return TrainedWeights.of_state(state), scores


def _train_heads(
    dataset: Dataset, settings: ScanSettings, run: RunFolder, session: TrainingSession, kept_out: Tensor | None = None
) -> Trained:
    """Compute features once, and train linear heads on them. One process does it; a stopped run keeps the features."""
    recipe = dataset.recipe
    assert isinstance(recipe, HeadRecipe)
    assert dataset.weights is not None
    features = compute_features(
        dataset.decoded, recipe, dataset.weights, settings.pixels, session, scratch=run.checkpoints / "features"
    )
    if features.reused:
        session.note("The features were in the cache.")
    return train_heads(dataset, features, settings, session, kept_out)


def train_heads(
    dataset: Dataset,
    features: Features,
    settings: ScanSettings,
    session: TrainingSession,
    kept_out: Tensor | None = None,
) -> Trained:
    """Choose depths and loss, and train linear heads on features. The dataset gets the chosen recipe."""
    recipe = dataset.recipe
    assert isinstance(recipe, HeadRecipe)
    data = HeadData(features, torch.from_numpy(dataset.codes), len(dataset.classes), torch.from_numpy(dataset.trusted))
    every = Projected.of(data, recipe)
    data = replace(data, groups=groups_of(dataset, data, every, settings, session))
    if kept_out is not None:
        data = replace(data, unused=torch.zeros(len(data.labels), dtype=torch.bool).index_fill_(0, kept_out, True))
    part, rows = trained_rows(data)
    recipe, depths = choose_depths(part, recipe, session)
    projected = every if recipe.depths == features.depths else Projected.of(data, recipe)
    del every  # a gigabyte for a million rows, if other depths were chosen
    chosen = projected if data.unused is None else projected.take(torch.from_numpy(rows))
    recipe, losses = choose_loss(part, chosen, recipe, session)
    if losses is not None:
        session.note(describe_loss(recipe, losses))
    head, ce_head, scores = train_ranked_heads(data, recipe, session, projected=projected)
    sizes = torch.bincount(data.together)
    facts = replace(
        scores.facts,
        compared_depths=depths,
        compared_losses=losses,
        groups=int((sizes > 1).sum()),
        grouped_rows=int(sizes[sizes > 1].sum()),
    )
    recipe = replace(recipe, sieve_eps=scores.sieve_eps or recipe.sieve_eps)
    weights = TrainedWeights.of_head(head, features.statistics, session.device, ce_head)
    return Trained(replace(dataset, recipe=recipe), weights, replace(scores, facts=facts))


def _compare_with_heads(
    network: Trained,
    recipe: HeadRecipe,
    settings: ScanSettings,
    run: RunFolder,
    decoder: Decoder,
    session: TrainingSession,
) -> Trained:
    """Train heads on frozen features beside the network. The one that agrees better with held-out labels decides.

    The same rows are kept out of both to the end, and both are what would decide: averaged over their last epochs.
    Where chance could explain the difference, it is the network.
    """
    dataset, kept_out = network.dataset, _kept_out(network.dataset)
    if not len(kept_out):
        return network  # too few rows to hold some out
    scratch = run.checkpoints / "pixels-of-heads"
    decoded = decoder.decode(dataset.index, dataset.decoded.file_facts, size=recipe.image_size, scratch=scratch)
    file = weights_file(recipe.weights, recipe.backbone)
    beside = replace(dataset, decoded=decoded, recipe=recipe, weights=file)
    heads = _train_heads(beside, settings, run, session, kept_out)
    given, rows = dataset.codes[kept_out.numpy()], kept_out.numpy()
    hits = [one.scores.probs[rows].argmax(axis=1) == given for one in (network, heads)]
    own, other = (float(hit.mean()) for hit in hits)
    lead = hits[1].astype(np.float64) - hits[0]
    reach = Z95 * float(lead.std()) / len(rows) ** 0.5
    low, high = other - own - reach, other - own + reach
    chosen = heads if low > 0 else network
    session.note(
        f"The network agrees with {own:.1%} of {len(rows):,} labels that were kept out of both, the heads with "
        f"{other:.1%} (difference {other - own:+.1%}, 95 % interval {low:+.1%} to {high:+.1%}): "
        f"the {'heads decide' if chosen is heads else 'network decides'}."
    )
    judges = [JudgeEvidence("network", own), JudgeEvidence("heads", other)]
    facts = replace(chosen.scores.facts, compared_judges=judges if chosen is network else judges[::-1])
    return replace(chosen, scores=replace(chosen.scores, facts=facts))
