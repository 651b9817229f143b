"""`noisesieve bench --ablation`: what sieve, regularizer and consistency training each add to test accuracy."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from noisesieve import __version__
from noisesieve.bench.figures import AblationFigures, AblationTable, this_machine
from noisesieve.bench.methods import Comparison, TrainingResult
from noisesieve.commands._dataset import Dataset, decode_dataset
from noisesieve.commands._test_set import decode_test_set, read_test_set
from noisesieve.commands.bench import join_one_process
from noisesieve.commands.measure_settings import BenchSettings
from noisesieve.core.errors import TrainingError, UsageError
from noisesieve.core.progress import Session
from noisesieve.core.records import Bools
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.describe import describe
from noisesieve.learn.losses import ENTROPY
from noisesieve.learn.recipes import NetworkRecipe
from noisesieve.learn.score import predict
from noisesieve.learn.state import TrainingState
from noisesieve.learn.training_data import TrainingData
from noisesieve.learn.training_settings import TrainingOptions
from noisesieve.pixels.decoder import Decoder
from noisesieve.retrain.data import LabelledTestSet, RetrainData
from noisesieve.retrain.loop import RetrainLoop
from noisesieve.retrain.retrain_plan import plan_retraining
from noisesieve.retrain.retrain_settings import RetrainOptions
from noisesieve.sieve.decide import decide
from noisesieve.sources.containers import read_index
from noisesieve.sources.source_settings import SourceSettings


def ablate(settings: BenchSettings, test: SourceSettings, *, session: Session | None = None) -> AblationTable:
    """Run five trainings on the same rows and measure each on the test set."""
    scan = settings.scan
    joined = join_one_process(scan, session)
    index = read_index(scan.source)
    with tempfile.TemporaryDirectory() as scratch, Decoder(scan.pixels, joined) as decoder:
        dataset = decode_dataset(index, scan, decoder, joined, scratch=Path(scratch))
        if dataset.recipe.frozen:
            raise UsageError("--ablation trains whole networks.", "Pass --weights none.")
        joined.note(f"{scan.training.preset}: {describe(dataset.recipe, joined.processes)}")
        size = dataset.recipe.image_size
        rows_of_test = read_test_set(test, dataset.classes, size, decoder, joined)
        test_set = decode_test_set(rows_of_test, dataset.classes, size, decoder, joined, scratch=Path(scratch) / "test")
        training_data = TrainingData(
            pixels=dataset.decoded.pixels,
            labels=torch.from_numpy(dataset.codes),
            classes=len(dataset.classes),
            trusted=torch.from_numpy(dataset.trusted),
            weights=dataset.weights,
        )
        comparison = Comparison(training_data, dataset.recipe, joined)
        rows = _rows(comparison, dataset, test_set, scan.training)
    return AblationTable(
        version=__version__,
        dataset=index.name,
        examples=len(dataset.codes),
        test_rows=len(test_set.labels),
        classes=len(dataset.classes),
        seed=dataset.recipe.seed,
        recipe=dataset.recipe,
        machine=this_machine(joined.device),
        methods=rows,
    )


def _rows(
    comparison: Comparison, dataset: Dataset, test_set: LabelledTestSet, options: TrainingOptions
) -> list[AblationFigures]:
    """Train with cross-entropy, with the sieve alone, with the entropy, with CR, then with consistency training."""
    recipe, count = comparison.recipe, len(comparison.training_data)
    assert isinstance(recipe, NetworkRecipe)
    rows = []
    trainings: tuple[tuple[str, Callable[[], TrainingResult]], ...] = (
        ("cross-entropy", lambda: comparison.plain),
        ("sieve without regularizer", lambda: comparison.train(replace(recipe, beta=0.0, settle_epochs=0))),
        ("sieve with entropy instead", lambda: comparison.train(replace(recipe, regularizer=ENTROPY))),
        ("sieve with regularizer", lambda: comparison.train(recipe)),
    )
    last: TrainingResult | None = None
    for name, train in trainings:
        comparison.session.note(name)
        last = train()
        assert last.state is not None
        clean = _clean(last, dataset) if name != trainings[0][0] else np.ones(count, dtype=np.bool_)
        rows.append(
            AblationFigures(
                method=name,
                accuracy=_accuracy(last.state, test_set, comparison),
                clean_rows=int(clean.sum()),
                seconds=last.seconds(),
                passes=last.passes(count),
            )
        )
    assert last is not None
    comparison.session.note("with consistency")
    rows.append(_with_consistency(last, comparison, dataset, test_set, rows[-1], options))
    return rows


def _clean(training: TrainingResult, dataset: Dataset) -> Bools:
    verdicts = decide(training.scores, dataset.codes, eps=dataset.recipe.sieve_eps, trusted=dataset.trusted)
    return ~verdicts.corrupted


def _with_consistency(
    training: TrainingResult,
    comparison: Comparison,
    dataset: Dataset,
    test_set: LabelledTestSet,
    before: AblationFigures,
    options: TrainingOptions,
) -> AblationFigures:
    """Train as `retrain` would after that scan. `--epochs` shortens it too."""
    state = training.state
    assert state is not None
    early = training.scores.early_clean
    clean = _clean(training, dataset) if early is None else early
    training_data, start = comparison.training_data, time.monotonic()
    if not clean.any():
        raise TrainingError("No row passed the sieve: there is nothing to train on.", "Lengthen --warmup-epochs.")
    labelled, unlabelled = (torch.from_numpy(np.flatnonzero(kind)) for kind in (clean, ~clean))
    recipe = plan_retraining(
        comparison.recipe,
        RetrainOptions(seed=comparison.recipe.seed, epochs=options.epochs),
        preset=options.preset,
        labelled=len(labelled),
        unlabelled=len(unlabelled),
        flip=bool(state.flip),
    )
    initial = {name: value.clone() for name, value in state.average.state_dict().items()}
    data = RetrainData(
        training_data.pixels,
        training_data.labels,
        labelled,
        unlabelled,
        training_data.classes,
        statistics=(state.mean, state.std),
        initial=initial if recipe.start == "run" else None,
    )
    result = RetrainLoop(data, recipe, comparison.session, name="retrain", test_set=None, checkpoints=None).run()
    images = sum(row.images for row in result.history)
    return AblationFigures(
        method="with consistency",
        accuracy=_accuracy(result.state, test_set, comparison),
        clean_rows=len(labelled),
        seconds=before.seconds + time.monotonic() - start,
        passes=before.passes + images / len(training_data),
    )


def _accuracy(state: TrainingState, test_set: LabelledTestSet, comparison: Comparison) -> float:
    loader = BatchLoader(test_set.pixels, comparison.session.device, statistics=(state.mean, state.std))
    pause = comparison.session.pause
    probs = predict(state.average, loader, flip=bool(state.flip), done=lambda count: pause())
    return float((probs.argmax(dim=1) == test_set.labels).double().mean())
