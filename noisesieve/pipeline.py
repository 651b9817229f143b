"""Read this first: the way of the data through the house, one call a stage.

    INDEX   sources   a path            → Index     which images, with which labels
    DECODE  pixels    Index             → Pixels    every image once, uint8 at training size
    TRAIN   learn     Pixels            → Scores    a confidence-regularized ResNet with the dynamic sieve,
                                                    or heads on a frozen backbone's features (features.py)
    DECIDE  sieve     Scores            → Verdicts  the closed-form threshold, a rank, a probability
    RECORD  report    Verdicts          → the run folder
    SHOW    review    the run folder    → review.html (handover.py has all that comes after a scan)

Row i is the same image at every stage. An image that cannot be read keeps its row and takes no part.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from noisesieve import __version__, handover, pixels, report, sources
from noisesieve.dataset import Dataset, prepare
from noisesieve.errors import OutputError, Stopped
from noisesieve.features import features_of
from noisesieve.files import digest, locked, write_json
from noisesieve.learn.checkpoint import Checkpoints
from noisesieve.learn.heads import Heads
from noisesieve.learn.lesson import Lesson
from noisesieve.learn.loop import Loop
from noisesieve.learn.model import Trained, save_model
from noisesieve.learn.plan import describe
from noisesieve.learn.world import World
from noisesieve.preflight import bytes_needed, identity_of, location, refuse_nonsense
from noisesieve.records import Index, Looks, Scores
from noisesieve.report.waivers import names_of, read_waivers, waived_rows, with_waivers
from noisesieve.settings import Recipe, ReviewSettings, ScanSettings
from noisesieve.sieve.judge import judge
from noisesieve.watch import Nobody, Stop, Watcher, pause_of, warn_all

MOST_PROBABILITIES = 10**8  # N * K up to which probabilities.parquet is written without being asked for


def scan(
    settings: ScanSettings,
    *,
    watcher: Watcher | None = None,
    stop: Stop = lambda: None,
    change: Callable[[Index], Index] = lambda index: index,
) -> report.Report:
    """Scan a dataset into its run folder and return the report. Under torchrun every rank calls this.

    `change` may give the index other labels before anything is learnt: `evaluate --plant` does.
    """
    refuse_nonsense(settings)
    world = World.join(settings.device)
    if world.leads:
        return _lead(settings, world, watcher or Nobody(), stop, change)
    return _follow(world, stop)


def _lead(
    settings: ScanSettings, world: World, watcher: Watcher, stop: Stop, change: Callable[[Index], Index]
) -> report.Report:
    """Every stage, in order."""
    shared = False
    try:
        index = change(sources.read(settings.source))
        folder = report.output_folder(settings.output, index, watcher)
        with locked(folder):
            for note in index.notes:
                watcher.note(note)
            looks = pixels.look(index, settings.pixels, watcher, pause=pause_of(stop))
            run = report.RunFolder(folder)
            identity = identity_of(settings, report.fingerprint(index, looks))
            claim = run.claim(identity, index, looks, force=settings.force)
            if claim == "finished":
                watcher.note("This run is finished already: same settings, same data.")
                return _with_new_waivers(run, index, looks, settings, watcher, stop)
            dataset = prepare(
                index, looks, settings, world, watcher, pause_of(stop), scratch=run.checkpoints / "pixels"
            )
            run.require_room(bytes_needed(dataset, settings))
            watcher.note(f"{settings.wishes.preset}: {describe(dataset.recipe, world)}")
            if dataset.recipe.frozen and settings.wishes.freeze is None:
                watcher.note("Photos, and no GPU: a pretrained backbone (--weights none trains one from scratch).")
            facts = {
                "recipe": asdict(dataset.recipe),
                "version": __version__,
                "location": location(settings),
            }
            (folder / "review.html").unlink(missing_ok=True)  # an older run's
            run.begin(identity, index, looks, fresh=claim == "fresh", **facts)
            if dataset.recipe.frozen:
                trained, scores = _learn_heads(dataset, settings, run, world, watcher, stop)
            else:
                lesson = _lesson(dataset, folder, identity)
                write_json(run.checkpoints / "handover.json", lesson)
                world.share(str(run.checkpoints / "handover.json"))
                shared = True
                trained, scores = _learn(lesson, world, watcher, stop)
            made = _record(dataset, trained, scores, identity, run, settings, watcher)
            run.write(identity, complete=True, **facts)
            if settings.review:
                _show(made, index, watcher, stop)
            return made
    finally:
        if not shared:
            world.share("")  # nothing to do, or nothing that can be done: let the other ranks go


def _follow(world: World, stop: Stop) -> report.Report:
    """What ranks other than the first do: train on what rank 0 hands over, in a folder that all of them see."""
    if file := world.share("", pause_of(stop)):
        _learn(json.loads(Path(file).read_text(encoding="utf-8")), world, Nobody(), stop)
    raise Stopped("", exit_code=0)


# TRAIN


def _lesson(dataset: Dataset, folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """All that training needs, as plain data: rank 0 hands it to the others."""
    return {
        "recipe": asdict(dataset.recipe),
        "pixels": pixels.to_document(dataset.decoded.pixels),
        "labels": dataset.codes.tolist(),
        "classes": len(dataset.classes),
        "trusted": dataset.trusted.tolist(),
        "weights": None if dataset.weights is None else str(dataset.weights),
        "checkpoints": str(folder / "checkpoint"),
        "identity": digest({**identity, "recipe": asdict(dataset.recipe), "version": __version__}),
    }


def _learn(handover: dict[str, Any], world: World, watcher: Watcher, stop: Stop) -> tuple[Trained, Scores]:
    """Train with the sieve; resumes by itself."""
    recipe = Recipe(**{**handover["recipe"], "lr_steps": tuple(handover["recipe"]["lr_steps"])})
    lesson = Lesson(
        pixels=pixels.from_document(handover["pixels"]),
        labels=torch.tensor(handover["labels"]),
        classes=handover["classes"],
        trusted=torch.tensor(handover["trusted"], dtype=torch.bool),
        weights=None if handover["weights"] is None else Path(handover["weights"]),
    )
    folder = Path(handover["checkpoints"])
    checkpoints = Checkpoints(folder, identity=handover["identity"], warn=watcher.warn)
    state, scores = Loop(lesson, recipe, world=world, watcher=watcher, checkpoints=checkpoints, stop=stop).run()
    return Trained.of_state(state), scores


def _learn_heads(
    dataset: Dataset, settings: ScanSettings, run: report.RunFolder, world: World, watcher: Watcher, stop: Stop
) -> tuple[Trained, Scores]:
    """Features once, then heads in seconds. One process does it; a run that was stopped goes on from the features."""
    recipe, device = dataset.recipe, world.device
    seen = features_of(
        dataset,
        settings.pixels,
        watcher,
        device=device,
        scratch=run.checkpoints / "features",
        pause=pause_of(stop),
    )
    if seen.reused:
        watcher.note("The features were in the cache.")
    heads = Heads(
        seen.tensor,
        torch.from_numpy(dataset.codes),
        len(dataset.classes),
        torch.from_numpy(dataset.trusted),
        recipe,
        device=device,
        watcher=watcher,
        stop=stop,
        contents=seen.contents,
    )
    head, scores = heads.run()
    return Trained.of_head(head, seen.statistics, device), scores


# DECIDE and RECORD


def _record(
    dataset: Dataset,
    trained: Trained,
    scores: Scores,
    identity: dict[str, Any],
    run: report.RunFolder,
    settings: ScanSettings,
    watcher: Watcher,
) -> report.Report:
    """Judge every row and write the run's files, each whole or not at all."""
    recipe, folder, classes = dataset.recipe, run.folder, dataset.classes
    verdicts = judge(scores, dataset.codes, eps=recipe.sieve_eps, trusted=dataset.trusted)
    index, looks = dataset.index, dataset.decoded.looks
    waived, broken = waived_rows(
        read_waivers(settings.waivers), names=names_of(index), labels=index.labels, hashes=looks.sha256
    )
    warn_all(watcher, broken)
    found = report.Findings(index, looks, dataset.decoded.rows, classes, dataset.codes, scores, verdicts, waived=waived)
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
    report.write_course(found, folder / "course.parquet")
    training = {**scores.facts, "device": trained.device, "recipe": asdict(recipe)}
    summary = report.summarize(table, classes=classes, undecided=verdicts.undecided, facts=training)
    write_json(folder / "summary.json", summary)
    _keep_division(found, folder / "division.parquet")
    assert scores.saved is not None
    save_model(
        folder,
        trained,
        prior=scores.prior.tolist(),
        beta=scores.beta,
        saved=scores.saved,
        corrupted=verdicts.corrupted,
        chances=verdicts.corruption_probability,
        recipe=recipe,
        classes=classes,
    )
    _warn_of_lost_classes(summary, watcher)
    return report.read_report(folder)


def _with_new_waivers(
    run: report.RunFolder, index: Index, looks: Looks, settings: ScanSettings, watcher: Watcher, stop: Stop
) -> report.Report:
    """A finished run, with the waivers of today: they change no score, and need no training."""
    made = report.read_report(run.folder)
    waived, broken = waived_rows(
        read_waivers(settings.waivers), names=names_of(index), labels=index.labels, hashes=looks.sha256
    )
    warn_all(watcher, broken)
    if np.array_equal(waived, made.table["waived"].to_numpy(zero_copy_only=False)):
        return made
    summary = made.summary
    table = with_waivers(made.table, waived)
    anew = report.summarize(
        table, classes=made.facts["classes"], undecided=summary["undecided"], facts=summary["training"]
    )
    run.replace(
        {
            "report.parquet": lambda path: report.write_table(table, path, made.facts),
            "summary.json": lambda path: write_json(path, anew),
        }
    )
    watcher.note("The waivers have changed since: report and summary follow them.")
    made = report.read_report(run.folder)
    if settings.review:
        _show(made, index, watcher, stop)
    return made


def _show(made: report.Report, index: Index, watcher: Watcher, stop: Stop) -> None:
    """The review page. The run is complete without it: what goes wrong here is a warning."""
    out = made.path.parent / "review.html"
    try:
        handover.review(made, index, out, limit=ReviewSettings.limit, watcher=watcher, pause=pause_of(stop))
    except (OutputError, OSError, Stopped) as error:
        watcher.warn(f"The run is complete, but has no review page ({error}): `noisesieve review` makes one.")


def _keep_division(found: report.Findings, path: Path) -> None:
    """The division that `retrain` takes over, by row of the report; only the paper's recipe has one of its own."""
    path.unlink(missing_ok=True)  # an older run's
    if found.scores.division is not None:
        clean = np.zeros(len(found.index), dtype=np.bool_)
        clean[found.rows] = found.scores.division
        report.write_table(pa.table({"clean": clean}), path)


def _keeps_probabilities(wish: str, scores: Scores) -> bool:
    return wish == "all" or (wish == "auto" and scores.probs.size <= MOST_PROBABILITIES)


def _warn_of_lost_classes(summary: dict[str, Any], watcher: Watcher) -> None:
    for row in summary["classes"]:
        if row["of"] and row["corrupted"] == row["of"]:
            watcher.warn(f"Class '{row['label']}': every row was judged corrupted; look at it before you believe it.")
