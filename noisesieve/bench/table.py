"""`bench`: run the methods on one dataset, and their figures as a document, in Markdown or as a table."""

from __future__ import annotations

import platform
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noisesieve import __version__, pixels, sources
from noisesieve.bench import peers, truth
from noisesieve.bench.contest import METHODS, NEED_PLAIN, Contest, Finding
from noisesieve.bench.frozen import FrozenContest
from noisesieve.bench.measure import area_under_roc, average_precision, calibration, detection
from noisesieve.dataset import prepare
from noisesieve.errors import InputError, UsageError
from noisesieve.features import features_of
from noisesieve.learn.lesson import Lesson
from noisesieve.learn.plan import describe
from noisesieve.learn.world import World
from noisesieve.preflight import refuse_nonsense
from noisesieve.records import Bools
from noisesieve.settings import BenchSettings
from noisesieve.watch import Nobody, Stop, Watcher, pause_of

COLUMNS = ("flagged", "precision", "recall", "f1", "average_precision", "auc", "seconds", "passes")
HEADINGS = ("method", "flagged", "precision", "recall", "F1", "AP", "AUC", "seconds", "passes")


def bench(settings: BenchSettings, *, watcher: Watcher | None = None, stop: Stop = lambda: None) -> dict[str, Any]:
    """Train and measure every method on the same rows; one JSON document."""
    watcher, scan, methods = watcher or Nobody(), settings.scan, _methods(settings.methods)
    refuse_nonsense(scan)
    world = World.join(scan.device)
    if world.size > 1:
        raise UsageError("bench runs in one process.", "Start it without torchrun.")
    index = sources.read(scan.source)
    rows_known = truth.Rows(index.ids, index.paths, index.labels, index.carried)
    right = truth.find(rows_known, settings.truth, settings.truth_column, watcher)
    with tempfile.TemporaryDirectory() as scratch:
        looks = pixels.look(index, scan.pixels, watcher, pause=pause_of(stop))
        dataset = prepare(index, looks, scan, world, watcher, pause_of(stop), scratch=Path(scratch))
        watcher.note(f"{scan.wishes.preset}: {describe(dataset.recipe, world)}")
        rows = dataset.decoded.rows.tolist()
        known: Bools = np.array([right[i] is not None for i in rows], dtype=np.bool_)
        wrong: Bools = np.array([right[i] != index.labels[i] for i in rows], dtype=np.bool_)[known]
        if not known.any():
            raise InputError("No readable row has a known right label.", "Is the truth the one of this dataset?")
        if not wrong.any():
            raise InputError("By this truth no label is wrong: there is nothing to find.", "Plant some with inject.")
        lesson = Lesson(
            pixels=dataset.decoded.pixels,
            labels=torch.from_numpy(dataset.codes),
            classes=len(dataset.classes),
            trusted=torch.zeros(len(rows), dtype=torch.bool),
            weights=dataset.weights,
        )
        if "cleanlab" in methods:
            peers.require_folds(dataset.codes, peers.FOLDS)
        contest = Contest(lesson, dataset.recipe, world, watcher, stop)
        if dataset.recipe.frozen:
            place, pause = Path(scratch) / "features", pause_of(stop)
            seen = features_of(dataset, scan.pixels, watcher, device=world.device, scratch=place, pause=pause)
            contest = FrozenContest(
                lesson, dataset.recipe, world, watcher, stop, features=seen.tensor, contents=seen.contents
            )
        if NEED_PLAIN & set(methods):
            watcher.note("plain cross-entropy, for those that rest on it")
            _ = contest.plain
        found = []
        for name in methods:
            watcher.note(name)
            found.append({"method": name, **_figures(METHODS[name](contest), known, wrong)})
    return {
        "schema_version": 1,
        "version": __version__,
        "dataset": index.name,
        "examples": len(rows),
        "measured": int(known.sum()),
        "classes": len(dataset.classes),
        "wrong": int(wrong.sum()),
        "label_column": index.label_column,
        "seed": dataset.recipe.seed,
        "recipe": asdict(dataset.recipe),
        "warmup_epochs": contest.warmup,
        "flip": contest.flip,
        "machine": machine_facts(world),
        "methods": found,
    }


def _methods(wanted: tuple[str, ...]) -> tuple[str, ...]:
    chosen = wanted or tuple(METHODS)
    for name in chosen:
        if name not in METHODS:
            raise UsageError(f"--methods {name}: unknown.", f"There are: {', '.join(METHODS)}.")
    if "cleanlab" in chosen:
        peers.require_cleanlab()
    return tuple(dict.fromkeys(chosen))


def _figures(found: Finding, known: Bools, wrong: Bools) -> dict[str, Any]:
    suspicion, hits = found.suspicion[known], detection(found.flagged[known], wrong)
    said = None if found.probability is None else found.probability[known]
    return {
        "flagged": hits.flagged,
        "precision": hits.precision,
        "recall": hits.recall,
        "f1": hits.f1,
        "average_precision": average_precision(suspicion, wrong),
        "auc": area_under_roc(suspicion, wrong),
        "seconds": found.seconds,
        "passes": found.passes,
        "ece": None if said is None else calibration(said, wrong).ece,
        "noise_rate_error": None if said is None else float(said.mean() - wrong.mean()),
    }


def machine_facts(world: World) -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "device": world.device.type,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cells(row: dict[str, Any]) -> list[str]:
    """A method's figures as text, in the order of HEADINGS."""
    return [row["method"], *(_cell(name, row[name]) for name in COLUMNS)]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name == "flagged":
        return f"{value:,}"
    if name == "seconds":
        return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
    return f"{value:.1f}" if name == "passes" else f"{value:.3f}"


def markdown(document: dict[str, Any]) -> str:
    """The table for a README, with the hardware and the share of wrong labels above it."""
    machine = document["machine"]
    lines = [
        f"{document['dataset']}: {document['examples']:,} images, {document['classes']} classes, "
        f"{document['wrong'] / document['measured']:.1%} wrong labels, seed {document['seed']}; "
        f"{document['recipe']['backbone']} at {document['recipe']['image_size']} px; "
        f"{machine['processor']}, {machine['threads']} thread{'s' * (machine['threads'] != 1)}, "
        f"{machine['device']}, torch {machine['torch']}, noisesieve {document['version']}.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|---|{'---:|' * len(COLUMNS)}",
        *(f"| {' | '.join(cells(row))} |" for row in document["methods"]),
    ]
    return "\n".join(lines) + "\n"
