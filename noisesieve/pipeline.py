"""Read this first: the way of the data through the house, one call a stage.

    INDEX   sources   a path            → Index     which images, with which labels
    DECODE  pixels    Index             → Pixels    every image once, uint8 at training size
    TRAIN   learn     Pixels            → Scores    a confidence-regularized ResNet with the dynamic sieve
    DECIDE  sieve     Scores            → Verdicts  the closed-form threshold, a rank, a probability
    RECORD  report    Verdicts          → the run folder

Row i is the same image at every stage. An image that cannot be read keeps its row and takes no part.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noisesieve import __version__, pixels, report, sources
from noisesieve.errors import InputError, Stopped, UsageError
from noisesieve.files import digest, locked, write_json
from noisesieve.learn.backbones import BACKBONES
from noisesieve.learn.checkpoint import Checkpoints
from noisesieve.learn.lesson import Lesson
from noisesieve.learn.loop import Loop
from noisesieve.learn.model import save_model, weight_bytes
from noisesieve.learn.plan import describe, estimate, image_size, plan
from noisesieve.learn.state import State
from noisesieve.learn.world import World, device_problem
from noisesieve.names import natural_key
from noisesieve.records import Index, Ints, Looks, Scores
from noisesieve.settings import Recipe, ScanSettings
from noisesieve.sieve.judge import judge
from noisesieve.watch import Nobody, Watcher

MOST_PROBABILITIES = 10**8  # N * K up to which probabilities.parquet is written without being asked for
Stop = Callable[[], Stopped | None]


def scan(settings: ScanSettings, *, watcher: Watcher | None = None, stop: Stop = lambda: None) -> report.Report:
    """Scan a dataset into its run folder and return the report. Under torchrun every rank calls this."""
    _refuse_nonsense(settings)
    world = World.join(settings.device)
    try:
        if world.leads:
            return _lead(settings, world, watcher or Nobody(), stop)
        return _follow(world, stop)
    finally:
        world.leave()


def _lead(settings: ScanSettings, world: World, watcher: Watcher, stop: Stop) -> report.Report:
    """Every stage, in order."""
    shared = False
    try:
        index = sources.read(settings.source)
        folder = report.output_folder(settings.output, index, watcher)
        with locked(folder):
            for note in index.notes:
                watcher.note(note)
            looks = pixels.look(index, settings.pixels, watcher, pause=_pause(stop))
            run = report.RunFolder(folder)
            identity = {**settings.identity(), "fingerprint": report.fingerprint(index, looks)}
            claim = run.claim(identity, index, looks, force=settings.force)
            if claim == "finished":
                watcher.note("This run is finished already: same settings, same data.")
                return report.read_report(folder)
            dataset = _decode(index, looks, settings, world, watcher, stop)
            run.require_room(_bytes_needed(dataset))
            watcher.note(f"{settings.wishes.preset}: {describe(dataset.recipe, world)}")
            facts = {"recipe": asdict(dataset.recipe), "version": __version__}
            run.begin(identity, index, looks, fresh=claim == "fresh", **facts)
            handover = _handover(dataset, folder, identity)
            write_json(run.checkpoints / "handover.json", handover)
            world.share(str(run.checkpoints / "handover.json"))
            shared = True
            state, scores = _learn(handover, world, watcher, stop)
            made = _record(dataset, state, scores, identity, run, settings, watcher)
            run.write(identity, complete=True, **facts)
            return made
    finally:
        if not shared:
            world.share("")  # nothing to do, or nothing that can be done: let the other ranks go


def _follow(world: World, stop: Stop) -> report.Report:
    """What ranks other than the first do: train on what rank 0 hands over, in a folder that all of them see."""
    if file := world.share("", _pause(stop)):
        _learn(json.loads(Path(file).read_text(encoding="utf-8")), world, Nobody(), stop)
    raise Stopped("", exit_code=0)


# DECODE


@dataclass(frozen=True)
class Dataset:
    """The readable rows, ready to learn from."""

    index: Index
    decoded: pixels.Decoded
    classes: list[str]  # those that occur in readable rows, in natural order
    codes: Ints  # (N,) labels of the readable rows as numbers
    recipe: Recipe

    @property
    def trusted(self) -> Any:
        trusted = self.index.trusted
        return np.zeros(len(self.codes), dtype=np.bool_) if trusted is None else trusted[self.decoded.rows]


def _decode(index: Index, looks: Looks, settings: ScanSettings, world: World, watcher: Watcher, stop: Stop) -> Dataset:
    """Decode at the size that suits the readable images. Unreadable ones must not even sway that choice."""
    device = world.device.type
    scratch = report.output_folder(settings.output, index, Nobody()) / "checkpoint" / "pixels"
    size = image_size(settings.wishes, longest_sides=_sides(looks), device=device)
    while True:
        decoded = pixels.decode(index, looks, settings.pixels, watcher, size=size, scratch=scratch, pause=_pause(stop))
        wanted = image_size(settings.wishes, longest_sides=_sides(decoded.looks), device=device)
        if wanted == size:
            break
        size = wanted
    _report_unreadable(index, decoded.looks, watcher)
    labels = [index.labels[i] for i in decoded.rows.tolist()]
    classes = sorted(set(labels), key=natural_key)
    if len(classes) < 2:
        shutil.rmtree(scratch, ignore_errors=True)
        raise InputError(
            f"{index.root}: {len(labels)} of {len(index)} images can be read, in {len(classes)} classes.",
            "A sieve needs two classes at least. Is --root right?",
        )
    if decoded.reused:
        watcher.note(f"Pixels at {size} px were in the cache.")
    recipe = plan(
        settings.wishes, rows=len(labels), classes=len(classes), longest_sides=_sides(decoded.looks), device=device
    )
    return Dataset(index, decoded, classes, report.class_codes(labels, classes), recipe)


def _sides(looks: Looks) -> Ints:
    """The longer side of every readable picture."""
    return np.maximum(looks.width, looks.height)[looks.readable]


def _report_unreadable(index: Index, looks: Looks, watcher: Watcher, most: int = 20) -> None:
    bad = np.flatnonzero(~looks.readable).tolist()
    for row in bad[:most]:
        watcher.warn(f"{index.paths[row] or index.ids[row]}: {looks.status[row]}")
    if len(bad) > most:
        watcher.warn(f"… and {len(bad) - most} more that cannot be read; the report names them all.")


# TRAIN


def _handover(dataset: Dataset, folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """All that training needs, as plain data: rank 0 hands it to the others."""
    return {
        "recipe": asdict(dataset.recipe),
        "pixels": pixels.to_document(dataset.decoded.pixels),
        "labels": dataset.codes.tolist(),
        "classes": len(dataset.classes),
        "trusted": dataset.trusted.tolist(),
        "checkpoints": str(folder / "checkpoint"),
        "identity": digest({**identity, "recipe": asdict(dataset.recipe), "version": __version__}),
    }


def _learn(handover: dict[str, Any], world: World, watcher: Watcher, stop: Stop) -> tuple[State, Scores]:
    """Train with the sieve; resumes by itself."""
    recipe = Recipe(**{**handover["recipe"], "lr_steps": tuple(handover["recipe"]["lr_steps"])})
    lesson = Lesson(
        pixels=pixels.from_document(handover["pixels"]),
        labels=torch.tensor(handover["labels"]),
        classes=handover["classes"],
        trusted=torch.tensor(handover["trusted"], dtype=torch.bool),
    )
    folder = Path(handover["checkpoints"])
    checkpoints = Checkpoints(folder, identity=handover["identity"], warn=watcher.warn)
    return Loop(lesson, recipe, world=world, watcher=watcher, checkpoints=checkpoints, stop=stop).run()


# DECIDE and RECORD


def _record(
    dataset: Dataset,
    state: State,
    scores: Scores,
    identity: dict[str, Any],
    run: report.RunFolder,
    settings: ScanSettings,
    watcher: Watcher,
) -> report.Report:
    """Judge every row and write the run's files, each whole or not at all."""
    recipe, folder, classes = dataset.recipe, run.folder, dataset.classes
    verdicts = judge(scores, dataset.codes, eps=recipe.sieve_eps, trusted=dataset.trusted)
    found = report.Findings(
        dataset.index, dataset.decoded.looks, dataset.decoded.rows, classes, dataset.codes, scores, verdicts
    )
    table = report.build(found)
    facts = {
        "version": __version__,
        "classes": classes,
        "prior": scores.prior.tolist(),
        "beta": scores.beta,
        "sieve_eps": recipe.sieve_eps,
        "settings": {**identity, "recipe": asdict(recipe)},
        "threads": torch.get_num_threads(),
        "fingerprint": identity["fingerprint"],
        "label_column": dataset.index.label_column,
    }
    report.write_table(table, folder / "report.parquet", facts)
    if _keeps_probabilities(settings.probabilities, scores):
        report.write_table(report.probabilities_table(found), folder / "probabilities.parquet", {"classes": classes})
    else:
        (folder / "probabilities.parquet").unlink(missing_ok=True)  # an older run's
    report.write_history(scores.history, folder / "history.parquet")
    training = {**scores.facts, "device": str(state.precision.device), "recipe": asdict(recipe)}
    summary = report.summarize(table, classes=classes, undecided=verdicts.undecided, facts=training)
    write_json(folder / "summary.json", summary)
    save_model(folder, state, scores, recipe, classes)
    _warn_of_lost_classes(summary, watcher)
    return report.read_report(folder)


def _keeps_probabilities(wish: str, scores: Scores) -> bool:
    return wish == "all" or (wish == "auto" and scores.probs.size <= MOST_PROBABILITIES)


def _warn_of_lost_classes(summary: dict[str, Any], watcher: Watcher) -> None:
    for row in summary["classes"]:
        if row["of"] and row["corrupted"] == row["of"]:
            watcher.warn(f"Class '{row['label']}': every row was judged corrupted; look at it before you believe it.")


# Odds and ends


def dry_run(settings: ScanSettings, *, watcher: Watcher | None = None) -> dict[str, Any]:
    """What `scan` would choose here and what it would cost; reads headers of up to 2,000 images, trains nothing."""
    _refuse_nonsense(settings)
    world = World.join(settings.device)
    index = sources.read(settings.source)
    sample = np.unique(np.linspace(0, len(index) - 1, min(len(index), 2000)).round().astype(np.int64))
    watcher = watcher or Nobody()
    for note in index.notes:
        watcher.note(note)
    looks = pixels.look(index, settings.pixels, watcher, rows=sample, pause=lambda: None)
    if lost := int((~looks.readable).sum()):
        watcher.warn(f"{lost:,} of {len(sample):,} images that were looked at cannot be read.")
    classes = len(set(index.labels))
    recipe = plan(
        settings.wishes, rows=len(index), classes=classes, longest_sides=_sides(looks), device=world.device.type
    )
    cost = estimate(recipe, rows=len(index), classes=classes, device=world.device)
    return {
        "examples": len(index),
        "classes": classes,
        "device": world.device.type,
        "threads": torch.get_num_threads(),
        "plan": f"{settings.wishes.preset}: {describe(recipe, world)}",
        "recipe": asdict(recipe),
        "estimate": asdict(cost),
        "streamed": cost.cache_bytes > settings.pixels.cache_budget,
        "output": str(report.output_folder(settings.output, index, Nobody())),
    }


def _refuse_nonsense(settings: ScanSettings) -> None:
    """Refuse before anything is read or written what no dataset could make right."""
    if problem := device_problem(settings.device):
        raise UsageError(problem, "Leave --device out, or choose cpu.")
    if settings.wishes.backbone not in (None, *BACKBONES):
        raise UsageError(f"--backbone {settings.wishes.backbone}: unknown.", f"There are: {', '.join(BACKBONES)}.")


def _pause(stop: Stop) -> Callable[[], None]:
    def pause() -> None:
        if (asked := stop()) is not None:
            raise asked

    return pause


def _bytes_needed(dataset: Dataset) -> int:
    """What the run folder will hold at its fullest: two checkpoints and a third being written, or the results."""
    rows, classes = len(dataset.codes), len(dataset.classes)
    checkpoint = 3 * weight_bytes(dataset.recipe, classes) + rows * (classes * 8 + 9)
    return 3 * checkpoint + len(dataset.index) * 500 + 2**20
