"""The TRAIN stage of `scan`: a network, heads on frozen features, or both; the one that agrees better decides."""

from __future__ import annotations

from dataclasses import replace

import torch

from noisesieve import __version__, pixels
from noisesieve.commands._prepare import Dataset
from noisesieve.core.files import digest
from noisesieve.core.recipes import HeadRecipe, NetworkRecipe, recipe_to_document
from noisesieve.core.records import JudgeEvidence, Scores
from noisesieve.core.settings import ScanSettings
from noisesieve.learn.checkpoint import Checkpoints
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.frozen.choose import choose_depths, choose_loss
from noisesieve.learn.frozen.features import Features, compute_features
from noisesieve.learn.frozen.head_data import HeadData, Projected
from noisesieve.learn.frozen.heads import Heads
from noisesieve.learn.loop import Loop
from noisesieve.learn.networks.pretrained import weights_file
from noisesieve.learn.plan import describe_loss
from noisesieve.learn.training_data import TrainingData, TrainingTask
from noisesieve.learn.warmup import held_out_rows
from noisesieve.report import RunFolder
from noisesieve.report.differences import Identity
from noisesieve.report.model_card import TrainedWeights


def train(
    dataset: Dataset, settings: ScanSettings, run: RunFolder, identity: Identity, session: TrainingSession
) -> tuple[Dataset, TrainedWeights, Scores]:
    """Train as the dataset's recipe says. Returns the dataset with the recipe of the model that decides."""
    if dataset.recipe.frozen:
        return _train_heads(dataset, settings, run, session)
    task = _training_task(dataset, run, identity)
    if session.processes.size > 1:
        try:
            task.save(run.checkpoints / "task")
        except BaseException:
            session.processes.broadcast("")  # no training: the other ranks end
            raise
        session.processes.broadcast(str(run.checkpoints / "task"))
    weights, scores = train_network(task, session)
    if dataset.beside is None:
        return dataset, weights, scores
    return _compare_with_heads(dataset, weights, scores, settings, run, session)


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
    )
    mark = digest({**identity, "recipe": recipe_to_document(recipe), "version": __version__})
    return TrainingTask(data, recipe, run.checkpoints, mark)


def train_network(task: TrainingTask, session: TrainingSession) -> tuple[TrainedWeights, Scores]:
    """Train a network with the sieve, from the last checkpoint if there is one."""
    checkpoints = Checkpoints(task.checkpoints, identity=task.identity, warn=session.warn)
    state, scores = Loop(task.data, task.recipe, session, checkpoints=checkpoints).run()
    return TrainedWeights.of_state(state), scores


def _train_heads(
    dataset: Dataset, settings: ScanSettings, run: RunFolder, session: TrainingSession
) -> tuple[Dataset, TrainedWeights, Scores]:
    """Compute features once, and train linear heads on them. One process does it; a stopped run keeps the features."""
    recipe = dataset.recipe
    assert isinstance(recipe, HeadRecipe)
    assert dataset.weights is not None
    features = compute_features(
        dataset.decoded, recipe, dataset.weights, settings.pixels, session, scratch=run.checkpoints / "features"
    )
    if features.reused:
        session.note("The features were in the cache.")
    return train_heads(dataset, features, session)


def train_heads(
    dataset: Dataset, features: Features, session: TrainingSession
) -> tuple[Dataset, TrainedWeights, Scores]:
    """Choose depths and loss, and train linear heads on features. Returns the dataset with the chosen recipe."""
    recipe = dataset.recipe
    assert isinstance(recipe, HeadRecipe)
    data = HeadData(features, torch.from_numpy(dataset.codes), len(dataset.classes), torch.from_numpy(dataset.trusted))
    recipe, depths = choose_depths(data, recipe, session)
    projected = Projected.of(data, recipe)
    recipe, losses = choose_loss(data, projected, recipe, session)
    if losses is not None:
        session.note(describe_loss(recipe, losses))
    head, scores = Heads(data, recipe, session, projected=projected).run()
    assert scores.facts is not None
    scores = replace(scores, facts=replace(scores.facts, compared_depths=depths, compared_losses=losses))
    recipe = replace(recipe, sieve_eps=scores.sieve_eps or recipe.sieve_eps)
    return replace(dataset, recipe=recipe), TrainedWeights.of_head(head, features.statistics, session.device), scores


def _compare_with_heads(
    dataset: Dataset,
    weights: TrainedWeights,
    scores: Scores,
    settings: ScanSettings,
    run: RunFolder,
    session: TrainingSession,
) -> tuple[Dataset, TrainedWeights, Scores]:
    """Train heads on frozen features beside the network. Whichever agrees better with held-out labels decides."""
    recipe, facts = dataset.beside, scores.facts
    assert recipe is not None
    assert facts is not None
    if facts.held_out_accuracy is None:
        return dataset, weights, scores  # too few rows to hold some out
    scratch = run.checkpoints / "pixels-beside"
    decoded = pixels.decode(
        dataset.index, dataset.decoded.file_facts, settings.pixels, session, size=recipe.image_size, scratch=scratch
    )
    file = weights_file(recipe.weights, recipe.backbone)
    others = replace(dataset, decoded=decoded, recipe=recipe, weights=file)
    others, head, head_scores = _train_heads(others, settings, run, session)
    held_out = held_out_rows(torch.from_numpy(dataset.codes), seed=dataset.recipe.seed).numpy()
    right = head_scores.probs[held_out].argmax(axis=1) == dataset.codes[held_out]
    judges = [JudgeEvidence("network", facts.held_out_accuracy), JudgeEvidence("heads", float(right.mean()))]
    judges.sort(key=lambda judge: -judge.agreement)
    best, other = judges
    session.note(
        f"The {best.judge} agrees with {best.agreement:.1%} of the held-out labels, the {other.judge} with "
        f"{other.agreement:.1%}: the {best.judge} {'decide' if best.judge == 'heads' else 'decides'}."
    )
    if judges[0].judge == "heads":
        dataset, weights, scores = others, head, head_scores
    assert scores.facts is not None
    return dataset, weights, replace(scores, facts=replace(scores.facts, compared_judges=judges))
