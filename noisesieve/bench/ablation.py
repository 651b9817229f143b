"""The paper's ablation on one's own data: what the sieve, the regularizer and the consistency each add to accuracy."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noisesieve import __version__, pixels, sources
from noisesieve.bench.contest import Contest, Training
from noisesieve.bench.table import machine_facts
from noisesieve.dataset import Dataset, prepare
from noisesieve.errors import TrainingError, UsageError
from noisesieve.exam import read_exam, test_set
from noisesieve.learn.feed import Feed
from noisesieve.learn.lesson import Lesson
from noisesieve.learn.plan import describe
from noisesieve.learn.state import State
from noisesieve.learn.world import World
from noisesieve.preflight import refuse_nonsense
from noisesieve.retrain import plan as plans
from noisesieve.retrain.loop import Exam, Material, Retraining, examine
from noisesieve.settings import BenchSettings, RetrainWishes, SourceSettings, Wishes
from noisesieve.sieve.judge import judge
from noisesieve.watch import Nobody, Stop, Watcher, pause_of

COLUMNS = ("method", "accuracy", "clean rows", "seconds", "passes")


def ablate(
    settings: BenchSettings, test: SourceSettings, *, watcher: Watcher | None = None, stop: Stop = lambda: None
) -> dict[str, Any]:
    """Four trainings on the same rows, each with its accuracy on the test set; one JSON document."""
    watcher, scan = watcher or Nobody(), settings.scan
    refuse_nonsense(scan)
    world = World.join(scan.device)
    if world.size > 1:
        raise UsageError("bench runs in one process.", "Start it without torchrun.")
    index = sources.read(scan.source)
    with tempfile.TemporaryDirectory() as scratch:
        looks = pixels.look(index, scan.pixels, watcher, pause=pause_of(stop))
        dataset = prepare(index, looks, scan, world, watcher, pause_of(stop), scratch=Path(scratch))
        if dataset.recipe.frozen:
            raise UsageError("--ablation trains whole networks.", "Pass --weights none.")
        watcher.note(f"{scan.wishes.preset}: {describe(dataset.recipe, world)}")
        exam = read_exam(
            *test_set(test, dataset.classes, scan.pixels, watcher, pause_of(stop)),
            dataset.classes,
            dataset.recipe.image_size,
            scan.pixels,
            watcher,
            scratch=Path(scratch) / "test",
            pause=pause_of(stop),
        )
        lesson = Lesson(
            pixels=dataset.decoded.pixels,
            labels=torch.from_numpy(dataset.codes),
            classes=len(dataset.classes),
            trusted=torch.from_numpy(dataset.trusted),
            weights=dataset.weights,
        )
        contest = Contest(lesson, dataset.recipe, world, watcher, stop)
        rows = _rows(contest, dataset, exam, scan.wishes)
    return {
        "schema_version": 1,
        "version": __version__,
        "dataset": index.name,
        "examples": len(dataset.codes),
        "test_rows": len(exam.labels),
        "classes": len(dataset.classes),
        "seed": dataset.recipe.seed,
        "recipe": asdict(dataset.recipe),
        "machine": machine_facts(world),
        "methods": rows,
    }


def _rows(contest: Contest, dataset: Dataset, exam: Exam, wishes: Wishes) -> list[dict[str, Any]]:
    """Cross-entropy; the sieve alone; with the regularizer; with consistency training after it."""
    recipe, count = contest.recipe, len(contest.lesson)
    found = []
    trainings: tuple[tuple[str, Callable[[], Training]], ...] = (
        ("cross-entropy", lambda: contest.plain),
        ("sieve without regularizer", lambda: contest.train(replace(recipe, beta=0.0, settle_epochs=0))),
        ("sieve with regularizer", lambda: contest.train(recipe)),
    )
    last: Training | None = None
    for name, train in trainings:
        contest.watcher.note(name)
        last = train()
        assert last.state is not None
        clean = _clean(last, dataset) if name != trainings[0][0] else np.ones(count, dtype=np.bool_)
        found.append(
            {
                "method": name,
                "accuracy": _accuracy(last.state, exam, contest),
                "clean_rows": int(clean.sum()),
                "seconds": last.seconds(),
                "passes": last.passes(count),
            }
        )
    assert last is not None
    contest.watcher.note("with consistency")
    found.append(_with_consistency(last, contest, dataset, exam, found[-1], wishes))
    return found


def _clean(training: Training, dataset: Dataset) -> np.ndarray[Any, np.dtype[np.bool_]]:
    verdicts = judge(training.scores, dataset.codes, eps=dataset.recipe.sieve_eps, trusted=dataset.trusted)
    return ~verdicts.corrupted


def _with_consistency(
    training: Training, contest: Contest, dataset: Dataset, exam: Exam, before: dict[str, Any], wishes: Wishes
) -> dict[str, Any]:
    """As `retrain` would after that scan; a shortened bench shortens it too."""
    state = training.state
    assert state is not None
    division = training.scores.division
    clean = _clean(training, dataset) if division is None else division
    lesson, start = contest.lesson, time.monotonic()
    if not clean.any():
        raise TrainingError("No row passed the sieve: there is nothing to train on.", "Lengthen --warmup-epochs.")
    labelled, unlabelled = (torch.from_numpy(np.flatnonzero(kind)) for kind in (clean, ~clean))
    recipe = plans.plan(
        contest.recipe,
        RetrainWishes(seed=contest.recipe.seed, epochs=wishes.epochs),
        preset=wishes.preset,
        labelled=len(labelled),
        unlabelled=len(unlabelled),
        flip=bool(state.flip),
    )
    initial = {name: value.clone() for name, value in state.average.state_dict().items()}
    material = Material(
        lesson.pixels,
        lesson.labels,
        labelled,
        unlabelled,
        lesson.classes,
        statistics=(state.mean, state.std),
        initial=initial if recipe.start == "run" else None,
    )
    taught = Retraining(
        material,
        recipe,
        exam=None,
        name="retrain",
        world=contest.world,
        watcher=contest.watcher,
        checkpoints=None,
        stop=contest.stop,
    ).run()
    seen = sum(row["images"] for row in taught.history) / len(lesson)
    return {
        "method": "with consistency",
        "accuracy": _accuracy(taught.state, exam, contest),
        "clean_rows": len(labelled),
        "seconds": before["seconds"] + time.monotonic() - start,
        "passes": before["passes"] + seen,
    }


def _accuracy(state: State, exam: Exam, contest: Contest) -> float:
    feed = Feed(exam.pixels, contest.world.device, statistics=(state.mean, state.std))
    probs: Tensor = examine(state.average, feed, flip=bool(state.flip), state=state, stop=contest.stop)
    return float((probs.argmax(dim=1) == exam.labels).double().mean())


def cells(row: dict[str, Any]) -> list[str]:
    """A training's figures as text, in the order of COLUMNS."""
    return [
        row["method"],
        f"{row['accuracy']:.3f}",
        f"{row['clean_rows']:,}",
        f"{row['seconds']:.0f}",
        f"{row['passes']:.1f}",
    ]


def markdown(document: dict[str, Any]) -> str:
    """The table for a README, with hardware above it."""
    machine = document["machine"]
    return "\n".join(
        [
            f"{document['dataset']}: {document['examples']:,} images, {document['test_rows']:,} test images, "
            f"seed {document['seed']}; {document['recipe']['backbone']} at {document['recipe']['image_size']} px; "
            f"{machine['processor']}, torch {machine['torch']}, noisesieve {document['version']}.",
            "",
            f"| {' | '.join(COLUMNS)} |",
            "|---|---:|---:|---:|---:|",
            *(f"| {' | '.join(cells(row))} |" for row in document["methods"]),
            "",
        ]
    )
