"""`noisesieve scan`. Read this file first: the way of the data, one call per stage.

    INDEX   sources   path → Index           which images, with which labels
    DECODE  pixels    Index → Pixels         every image once, uint8 at training size
    TRAIN   learn     Pixels → Scores        a CR-regularized ResNet with the sieve, or CR heads on frozen features
    DECIDE  sieve     Scores → Verdicts      the closed-form threshold, a rank, a probability
    RECORD  report    Verdicts → run folder
    SHOW    review    run folder → review.html

Row i is the same image at every stage. An image that cannot be read keeps its row and takes no part in training.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noisesieve import __version__, pixels, sources
from noisesieve.commands._prepare import (
    Dataset,
    bytes_needed,
    identity_of_run,
    location_of_data,
    prepare_dataset,
    validate_settings,
)
from noisesieve.commands.review import write_review
from noisesieve.core.command_settings import ReviewSettings
from noisesieve.core.errors import OutputError, Stopped
from noisesieve.core.files import digest, locked, write_json
from noisesieve.core.progress import NullWatcher, Stop, Watcher, pause_of, warn_all
from noisesieve.core.recipes import HeadRecipe, NetworkRecipe, recipe_from_document, recipe_to_document
from noisesieve.core.records import FileFacts, Index, Scores
from noisesieve.core.settings import ScanSettings
from noisesieve.learn.checkpoint import Checkpoints
from noisesieve.learn.distributed import Processes
from noisesieve.learn.frozen.features import compute_features
from noisesieve.learn.frozen.heads import Heads
from noisesieve.learn.loop import Loop
from noisesieve.learn.plan import describe
from noisesieve.learn.training_data import TrainingData
from noisesieve.report import (
    Report,
    ReportInputs,
    RunFolder,
    build_table,
    fingerprint,
    output_folder,
    probabilities_table,
    read_report,
    summarize,
    write_division,
    write_history,
    write_margin_history,
    write_table,
)
from noisesieve.report.model_card import TrainedWeights, save_model
from noisesieve.report.waivers import find_waived, with_waivers
from noisesieve.sieve.calibrate import summarize_model
from noisesieve.sieve.decide import decide

MOST_PROBABILITIES = 10**8  # N * K up to which probabilities.parquet is written by default


def scan(
    settings: ScanSettings,
    *,
    watcher: Watcher | None = None,
    stop: Stop = lambda: None,
    change: Callable[[Index], Index] = lambda index: index,
) -> Report:
    """Scan a dataset into its run folder and return the report. Under torchrun every rank calls this.

    `change` may replace labels of the index before training: `evaluate --plant` uses it.
    """
    validate_settings(settings)
    processes = Processes.join(settings.device)
    if processes.is_leader:
        return _lead(settings, processes, watcher or NullWatcher(), stop, change)
    return _follow(processes, stop)


def _lead(
    settings: ScanSettings, processes: Processes, watcher: Watcher, stop: Stop, change: Callable[[Index], Index]
) -> Report:
    """Run every stage, in order. This is rank 0, or the only process."""
    shared = False
    try:
        index = change(sources.read(settings.source))
        folder = output_folder(settings.output, index, watcher)
        with locked(folder):
            for note in index.notes:
                watcher.note(note)
            file_facts = pixels.inspect_files(index, settings.pixels, watcher, pause=pause_of(stop))
            run = RunFolder(folder)
            identity = identity_of_run(settings, fingerprint(index, file_facts))
            claim = run.claim(identity, index, file_facts, force=settings.force)
            if claim == "finished":
                watcher.note("This run is finished already: same settings, same data.")
                return _with_current_waivers(run, index, file_facts, settings, watcher, stop)
            dataset = prepare_dataset(
                index, file_facts, settings, processes, watcher, pause_of(stop), scratch=run.checkpoints / "pixels"
            )
            run.require_free_space(bytes_needed(dataset, settings))
            watcher.note(f"{settings.training.preset}: {describe(dataset.recipe, processes)}")
            if dataset.recipe.frozen and settings.training.freeze is None:
                watcher.note(
                    "No GPU and images of 48 px or more: using frozen EfficientNet-lite0 features. "
                    "Pass --weights none to train a ResNet instead."
                )
            facts = {
                "recipe": recipe_to_document(dataset.recipe),
                "version": __version__,
                "location": location_of_data(settings),
            }
            (folder / "review.html").unlink(missing_ok=True)  # from an older run
            run.begin(identity, index, file_facts, fresh=claim == "fresh", **facts)
            if dataset.recipe.frozen:
                weights, scores = _train_heads(dataset, settings, run, processes, watcher, stop)
            else:
                task = _training_task(dataset, folder, identity)
                write_json(run.checkpoints / "training.json", task)
                processes.broadcast(str(run.checkpoints / "training.json"))
                shared = True
                weights, scores = _train_network(task, processes, watcher, stop)
            report = _record(dataset, weights, scores, identity, run, settings, watcher)
            run.write(identity, complete=True, **facts)
            if settings.review:
                _show(report, index, watcher, stop)
            return report
    finally:
        if not shared:
            processes.broadcast("")  # no training: the other ranks end


def _follow(processes: Processes, stop: Stop) -> Report:
    """Train with rank 0, from the task file that it wrote. Ranks other than 0 return no report."""
    if file := processes.broadcast("", pause_of(stop)):
        _train_network(json.loads(Path(file).read_text(encoding="utf-8")), processes, NullWatcher(), stop)
    raise Stopped("", exit_code=0)


# TRAIN


def _training_task(dataset: Dataset, folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Return all that training needs as plain data, so that rank 0 can pass it to the other ranks."""
    return {
        "recipe": recipe_to_document(dataset.recipe),
        "pixels": pixels.pixels_to_document(dataset.decoded.pixels),
        "labels": dataset.codes.tolist(),
        "classes": len(dataset.classes),
        "trusted": dataset.trusted.tolist(),
        "weights": None if dataset.weights is None else str(dataset.weights),
        "checkpoints": str(folder / "checkpoint"),
        "identity": digest({**identity, "recipe": recipe_to_document(dataset.recipe), "version": __version__}),
    }


def _train_network(
    task: dict[str, Any], processes: Processes, watcher: Watcher, stop: Stop
) -> tuple[TrainedWeights, Scores]:
    """Train a network with the sieve, from the last checkpoint if there is one."""
    recipe = recipe_from_document(task["recipe"])
    assert isinstance(recipe, NetworkRecipe)
    training_data = TrainingData(
        pixels=pixels.pixels_from_document(task["pixels"]),
        labels=torch.tensor(task["labels"]),
        classes=task["classes"],
        trusted=torch.tensor(task["trusted"], dtype=torch.bool),
        weights=None if task["weights"] is None else Path(task["weights"]),
    )
    checkpoints = Checkpoints(Path(task["checkpoints"]), identity=task["identity"], warn=watcher.warn)
    loop = Loop(training_data, recipe, processes=processes, watcher=watcher, checkpoints=checkpoints, stop=stop)
    state, scores = loop.run()
    return TrainedWeights.of_state(state), scores


def _train_heads(
    dataset: Dataset, settings: ScanSettings, run: RunFolder, processes: Processes, watcher: Watcher, stop: Stop
) -> tuple[TrainedWeights, Scores]:
    """Compute features once, then train linear heads on them. One process does it; a stopped run keeps the features."""
    recipe, device = dataset.recipe, processes.device
    assert isinstance(recipe, HeadRecipe)
    assert dataset.weights is not None
    features = compute_features(
        dataset.decoded,
        recipe,
        dataset.weights,
        settings.pixels,
        watcher,
        device=device,
        scratch=run.checkpoints / "features",
        pause=pause_of(stop),
    )
    if features.reused:
        watcher.note("The features were in the cache.")
    heads = Heads(
        features.tensor,
        torch.from_numpy(dataset.codes),
        len(dataset.classes),
        torch.from_numpy(dataset.trusted),
        recipe,
        device=device,
        watcher=watcher,
        stop=stop,
        contents=features.contents,
    )
    head, scores = heads.run()
    return TrainedWeights.of_head(head, features.statistics, device), scores


# DECIDE and RECORD


def _record(
    dataset: Dataset,
    weights: TrainedWeights,
    scores: Scores,
    identity: dict[str, Any],
    run: RunFolder,
    settings: ScanSettings,
    watcher: Watcher,
) -> Report:
    """Decide on every row and write the files of the run, each atomically."""
    recipe, folder, classes = dataset.recipe, run.folder, dataset.classes
    verdicts = decide(scores, dataset.codes, eps=recipe.sieve_eps, trusted=dataset.trusted)
    index, file_facts = dataset.index, dataset.decoded.file_facts
    waived, broken = find_waived(settings.waivers, index, file_facts.sha256)
    warn_all(watcher, broken)
    inputs = ReportInputs(
        index, file_facts, dataset.decoded.rows, classes, dataset.codes, scores, verdicts, waived=waived
    )
    table = build_table(inputs)
    facts = {
        "version": __version__,
        "classes": classes,
        "prior": scores.prior.tolist(),
        "beta": scores.beta,
        "sieve_eps": recipe.sieve_eps,
        "settings": {**identity, "recipe": recipe_to_document(recipe)},
        "threads": torch.get_num_threads(),
        "fingerprint": identity["fingerprint"],
        "label_column": dataset.index.label_column,
    }
    write_table(table, folder / "report.parquet", facts)
    if settings.probabilities == "all" or (
        settings.probabilities == "auto" and scores.probs.size <= MOST_PROBABILITIES
    ):
        write_table(probabilities_table(inputs), folder / "probabilities.parquet", {"classes": classes})
    else:
        (folder / "probabilities.parquet").unlink(missing_ok=True)  # from an older run
    write_history(scores.history, folder / "history.parquet")
    write_margin_history(inputs, folder / "margin_history.parquet")
    training = {**scores.facts, "device": weights.device, "recipe": recipe_to_document(recipe)}
    summary = summarize(table, classes=classes, undecided=verdicts.undecided, facts=training)
    write_json(folder / "summary.json", summary)
    write_division(inputs, folder / "division.parquet")
    assert scores.saved_model_scores is not None
    save_model(
        folder,
        weights,
        prior=scores.prior.tolist(),
        beta=scores.beta,
        summary=summarize_model(scores.saved_model_scores, verdicts.corrupted, verdicts.corruption_probability),
        network=recipe,
        frozen=recipe.frozen,
        sieve_eps=recipe.sieve_eps,
        classes=classes,
    )
    for row in summary["classes"]:
        if row["of"] and row["corrupted"] == row["of"]:
            watcher.warn(f"Class '{row['label']}': every row is flagged. Look at some of its images first.")
    return read_report(folder)


def _with_current_waivers(
    run: RunFolder, index: Index, file_facts: FileFacts, settings: ScanSettings, watcher: Watcher, stop: Stop
) -> Report:
    """Return a finished run's report with the current waivers. They change no score, so nothing is trained."""
    report = read_report(run.folder)
    waived, broken = find_waived(settings.waivers, index, file_facts.sha256)
    warn_all(watcher, broken)
    if np.array_equal(waived, report.table["waived"].to_numpy(zero_copy_only=False)):
        return report
    old, table = report.summary, with_waivers(report.table, waived)
    summary = summarize(table, classes=report.facts["classes"], undecided=old["undecided"], facts=old["training"])
    run.replace(
        {
            "report.parquet": lambda path: write_table(table, path, report.facts),
            "summary.json": lambda path: write_json(path, summary),
        }
    )
    watcher.note("The waivers have changed: report and summary are updated.")
    report = read_report(run.folder)
    if settings.review:
        _show(report, index, watcher, stop)
    return report


# SHOW


def _show(report: Report, index: Index, watcher: Watcher, stop: Stop) -> None:
    """Write the review page. The run is complete without it, so an error here is only a warning."""
    page = report.path.parent / "review.html"
    try:
        write_review(report, index, page, limit=ReviewSettings.limit, watcher=watcher, pause=pause_of(stop))
    except (OutputError, OSError, Stopped) as error:
        watcher.warn(f"The run is complete, but its review page is missing ({error}). `noisesieve review` writes it.")
