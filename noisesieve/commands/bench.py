"""`noisesieve bench`: noisesieve and its peers on the same rows of one dataset."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from noisesieve import __version__
from noisesieve.bench import peers
from noisesieve.bench.figures import AblationTable, BenchTable, as_markdown, figures_of, this_machine, to_document
from noisesieve.bench.frozen_methods import FrozenComparison
from noisesieve.bench.methods import METHODS, NEED_FOLDS, NEED_PLAIN, Comparison, MethodResult
from noisesieve.commands._dataset import Dataset, decode_dataset, validate_settings
from noisesieve.commands.measure_settings import BenchSettings
from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.progress import Session
from noisesieve.core.records import Bools
from noisesieve.learn.describe import describe
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.frozen.choose import choose_depths, choose_loss
from noisesieve.learn.frozen.features import compute_features
from noisesieve.learn.frozen.groups import near_identical
from noisesieve.learn.frozen.head_data import HeadData, Projected
from noisesieve.learn.recipes import HeadRecipe
from noisesieve.learn.training_data import TrainingData
from noisesieve.measure import truth
from noisesieve.pixels.decoder import Decoder
from noisesieve.sources.containers import read_index

__all__ = ["AblationTable", "BenchTable", "as_markdown", "bench", "join_one_process", "to_document"]


def bench(settings: BenchSettings, *, session: Session | None = None) -> BenchTable:
    """Train and measure every method on the same rows."""
    scan, methods = settings.scan, _methods(settings.methods)
    joined = join_one_process(scan, session)
    index = read_index(scan.source)
    rows = truth.LabelledRows(index.ids, index.paths, index.labels, index.carried)
    right = truth.find_truth(rows, settings.truth, joined)
    with tempfile.TemporaryDirectory() as scratch, Decoder(scan.pixels, joined) as decoder:
        dataset = decode_dataset(index, scan, decoder, joined, scratch=Path(scratch))
        joined.note(f"{scan.training.preset}: {describe(dataset.recipe, joined.processes)}")
        known, wrong = _wrong_labels(dataset, right)
        if NEED_FOLDS & set(methods):
            peers.require_folds(dataset.codes, peers.FOLDS)
        comparison = _comparison(dataset, scan, joined, scratch=Path(scratch) / "features")
        comparison.truth = known, wrong
        if NEED_PLAIN & set(methods):
            joined.note("Training with plain cross-entropy, which several methods share")
            _ = comparison.plain
        results: dict[str, MethodResult] = {}
        for name in methods:
            joined.note(name)
            shown = f"{name}-heads" if name == "paper" and comparison.recipe.frozen else name
            results[shown] = METHODS[name](comparison)
    return BenchTable(
        version=__version__,
        dataset=index.name,
        examples=len(dataset.codes),
        measured=int(known.sum()),
        classes=len(dataset.classes),
        wrong=int(wrong.sum()),
        label_column=index.label_column,
        seed=comparison.recipe.seed,
        recipe=comparison.recipe,
        warmup_epochs=comparison.warmup,
        flip=comparison.flip,
        machine=this_machine(joined.device),
        methods=figures_of(results, known, wrong),
    )


def join_one_process(scan: ScanSettings, session: Session | None) -> TrainingSession:
    """Check the settings and refuse torchrun: a bench runs in one process."""
    validate_settings(scan)
    joined = TrainingSession.join(scan.device, session)
    if joined.processes.size > 1:
        raise UsageError("bench runs in one process.", "Start it without torchrun.")
    return joined


def _methods(wanted: tuple[str, ...]) -> tuple[str, ...]:
    chosen = wanted or tuple(METHODS)
    if NEED_FOLDS & set(chosen):
        peers.require_cleanlab()
    return tuple(dict.fromkeys(chosen))


def _wrong_labels(dataset: Dataset, right: list[str | None]) -> tuple[Bools, Bools]:
    """Return which readable rows have a known right label, (N,), and which of those are wrong, (M,)."""
    labels, rows = dataset.index.labels, dataset.decoded.rows.tolist()
    known: Bools = np.array([right[i] is not None for i in rows], dtype=np.bool_)
    wrong: Bools = np.array([right[i] != labels[i] for i in rows], dtype=np.bool_)[known]
    if not known.any():
        raise InputError("No readable row has a known right label.", "Is the truth that of this dataset?")
    if not wrong.any():
        raise InputError("By this truth no label is wrong: there is nothing to find.", "Plant some with inject.")
    return known, wrong


def _comparison(dataset: Dataset, scan: ScanSettings, session: TrainingSession, *, scratch: Path) -> Comparison:
    """Return what the methods are run on: pixels, or features where the recipe is frozen."""
    recipe = dataset.recipe
    training_data = TrainingData(
        pixels=dataset.decoded.pixels,
        labels=torch.from_numpy(dataset.codes),
        classes=len(dataset.classes),
        trusted=torch.zeros(len(dataset.codes), dtype=torch.bool),
        weights=dataset.weights,
    )
    if not isinstance(recipe, HeadRecipe):
        return Comparison(training_data, recipe, session)
    assert dataset.weights is not None
    features = compute_features(dataset.decoded, recipe, dataset.weights, scan.pixels, session, scratch=scratch)
    rows = HeadData(features, training_data.labels, training_data.classes, training_data.trusted)
    groups = near_identical(Projected.of(rows, recipe).points, features.contents)
    rows = replace(rows, groups=groups)
    recipe, _ = choose_depths(rows, recipe, session)
    recipe, _ = choose_loss(rows, Projected.of(rows, recipe), recipe, session)
    return FrozenComparison(training_data, recipe, session, features=features, groups=groups)
