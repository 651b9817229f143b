"""`noisesieve retrain`: consistency training (CORES²*) on the clean / corrupted split of a finished run.

REPORT   report    run → which rows are clean, corrupted, or decided by people
DECODE   pixels    the run's dataset → Pixels at the run's size; the test set too
RETRAIN  retrain   both → a model; plain cross-entropy beside it with --baseline ce
RECORD   output folder: model.safetensors, model.json, the run's report, history.parquet, retrain.json, curves.svg
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save

from noisesieve import __version__, pixels
from noisesieve.commands._open_run import index_of_run
from noisesieve.commands._retrain_job import RetrainJob, prepare_retraining, recipe_of_run, retrained_folder
from noisesieve.commands._retrain_rows import LABELLED, UNLABELLED, assign_roles
from noisesieve.core.command_settings import RetrainSettings
from noisesieve.core.errors import InputError, OutputError, Stopped
from noisesieve.core.files import atomic_write, digest, locked, write_json
from noisesieve.core.progress import NullWatcher, Stop, Watcher, pause_of
from noisesieve.core.recipes import RetrainRecipe
from noisesieve.core.records import Ints
from noisesieve.core.text import printable, without_xml_control
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.checkpoint import Checkpoints
from noisesieve.learn.device import require_device
from noisesieve.learn.distributed import Processes
from noisesieve.learn.score import predict
from noisesieve.learn.second_opinion import label_scores
from noisesieve.report import RunFolder, output_folder, read_report, write_table
from noisesieve.report.model_card import SavedModel, TrainedWeights, load_model, save_model
from noisesieve.retrain.chart import draw_accuracy
from noisesieve.retrain.loop import LabelledTestSet, RetrainData, RetrainLoop, RetrainResult
from noisesieve.retrain.plan import describe_retraining, plan_baseline
from noisesieve.sieve.calibrate import summarize_model

# Files of an older run in the same folder, which would not belong to the new model.
STALE = (
    "summary.json",
    "probabilities.parquet",
    "margin_history.parquet",
    "division.parquet",
    "review.html",
    "curves.svg",
)


def retrain(settings: RetrainSettings, *, watcher: Watcher | None = None, stop: Stop = lambda: None) -> dict[str, Any]:
    """Retrain a run's model into its own folder and return retrain.json. Under torchrun every rank calls this."""
    require_device(settings.device)
    processes = Processes.join(settings.device)
    if processes.is_leader:
        try:
            return _lead(settings, processes, watcher or NullWatcher(), stop)
        finally:
            processes.broadcast("")  # no further training: the other ranks end
    while file := processes.broadcast("", pause_of(stop)):
        _train(json.loads(Path(file).read_text(encoding="utf-8")), processes, NullWatcher(), stop)
    raise Stopped("", exit_code=0)


def _lead(settings: RetrainSettings, processes: Processes, watcher: Watcher, stop: Stop) -> dict[str, Any]:
    """Run every stage, in order. This is rank 0, or the only process."""
    report = read_report(settings.run)
    model = load_model(report.path.parent, processes.device)
    index = index_of_run(report, settings.data, settings.root)
    roles = assign_roles(report, settings, index.root)
    if not (roles.role == LABELLED).any():
        raise InputError(f"{report.path.parent}: no row is clean.", "There is nothing to train on.")
    folder = output_folder(settings.output or retrained_folder(report.path.parent), index, watcher)
    if folder.exists() and folder.samefile(report.path.parent):
        raise OutputError(f"{folder}: is the run itself.", "Choose another folder with -o.")
    with locked(folder):
        job = prepare_retraining(report, model, index, roles, settings, RunFolder(folder), watcher, pause_of(stop))
        if job is None:
            watcher.note("This retraining is finished already: same settings, same run.")
            known: dict[str, Any] = json.loads((folder / "retrain.json").read_text(encoding="utf-8"))
            return {**known, "run": str(settings.run), "output": str(folder)}
        clean, corrupted = job.rows(LABELLED), job.rows(UNLABELLED)
        watcher.note(describe_retraining(job.recipe, len(clean), len(corrupted)))
        retrained = _share_and_train(job, "retrain", job.recipe, job.codes, clean, corrupted, processes, watcher, stop)
        baseline = None
        if settings.baseline == "ce":
            rows = np.flatnonzero((report.verdicts[job.decoded.rows] != "unreadable") & (job.given >= 0))
            passes = job.recipe.image_count(len(clean), len(corrupted)) + _images_of_scan(job)
            fair = plan_baseline(job.recipe, recipe_of_run(report), rows=len(rows), passes=passes)
            baseline = _share_and_train(job, "ce", fair, job.given, rows, rows[:0], processes, watcher, stop)
        document = _record(job, retrained, baseline, processes, watcher, stop)
        job.folder.write(job.identity, complete=True, version=__version__)
        return document


def _images_of_scan(job: RetrainJob) -> int:
    """Return the number of images that the scan trained on, if retraining continues from its weights; else 0."""
    run = recipe_of_run(job.report)
    if job.recipe.start == "scratch" or run.weights != "none":
        return 0
    history = pq.read_table(job.report.path.parent / "history.parquet").to_pylist()
    return int(sum(row["images_per_second"] * row["train_seconds"] for row in history))


def _initial_weights(job: RetrainJob, start: str) -> str | None:
    """Write the run's weights, backbone included, to a file that every rank can read."""
    if start == "scratch":
        return None
    file = job.folder.checkpoints / "initial.safetensors"
    with atomic_write(file) as out:
        out.write(save({name: value.contiguous().cpu() for name, value in job.model.network.state_dict().items()}))
    return str(file)


def _share_and_train(
    job: RetrainJob,
    name: str,
    recipe: RetrainRecipe,
    labels: Ints,
    clean: Ints,
    corrupted: Ints,
    processes: Processes,
    watcher: Watcher,
    stop: Stop,
) -> RetrainResult:
    """Pass a training to the other ranks as plain data, and take part in it."""
    test_set = job.test_set
    task = {
        "name": name,
        "recipe": asdict(recipe),
        "pixels": pixels.pixels_to_document(job.decoded.pixels),
        "labels": labels.tolist(),
        "clean": clean.tolist(),
        "corrupted": corrupted.tolist(),
        "classes": len(job.model.classes),
        "statistics": list(job.model.statistics),
        "test_set": test_set
        and {"pixels": pixels.pixels_to_document(test_set.pixels), "labels": test_set.labels.tolist()},
        "checkpoints": str(job.folder.checkpoints),
        "identity": digest({**job.identity, "version": __version__}),
        "initial": _initial_weights(job, recipe.start),
    }
    file = job.folder.checkpoints / f"{name}.json"
    write_json(file, task)
    processes.broadcast(str(file))
    return _train(task, processes, watcher, stop)


def _train(task: dict[str, Any], processes: Processes, watcher: Watcher, stop: Stop) -> RetrainResult:
    """Run one training from plain data, from its last checkpoint if there is one."""
    recipe = RetrainRecipe(**task["recipe"])
    mean, std = task["statistics"]
    data = RetrainData(
        pixels=pixels.pixels_from_document(task["pixels"]),
        labels=torch.tensor(task["labels"]),
        clean=torch.tensor(task["clean"]),
        corrupted=torch.tensor(task["corrupted"], dtype=torch.int64),
        classes=task["classes"],
        statistics=(mean, std),
        initial=None if task["initial"] is None else load_file(task["initial"]),
    )
    test_set = task["test_set"]
    if test_set is not None:
        test_set = LabelledTestSet(pixels.pixels_from_document(test_set["pixels"]), torch.tensor(test_set["labels"]))
    folder, name = Path(task["checkpoints"]), task["name"]
    checkpoints = Checkpoints(folder / name, identity=task["identity"], warn=watcher.warn)
    return RetrainLoop(
        data,
        recipe,
        test_set=test_set,
        name=name,
        processes=processes,
        watcher=watcher,
        checkpoints=checkpoints,
        stop=stop,
    ).run()


def _record(
    job: RetrainJob,
    retrained: RetrainResult,
    baseline: RetrainResult | None,
    processes: Processes,
    watcher: Watcher,
    stop: Stop,
) -> dict[str, Any]:
    """Score the run's rows with the new weights, for the model card, and write every file."""
    model, folder, state = job.model, job.folder.folder, retrained.state
    watcher.stage("scoring", len(job.codes))
    loader = BatchLoader(job.decoded.pixels, processes.device, statistics=model.statistics)
    pause = pause_of(stop)
    probs = predict(state.average, loader, flip=model.flip, done=lambda count: pause())
    watcher.finish()
    rows = np.flatnonzero((job.codes >= 0) & (job.report.verdicts[job.decoded.rows] != "unreadable"))
    codes, corrupted = job.codes[rows], job.roles.role[job.decoded.rows[rows]] != LABELLED
    column = job.report.table["corruption_probability"].to_numpy(zero_copy_only=False).astype(np.float64)
    probabilities = np.nan_to_num(column[job.decoded.rows[rows]])
    probabilities = np.where(~corrupted & (codes != job.given[rows]), 0.0, probabilities)  # corrected labels are right
    for old in STALE:
        (folder / old).unlink(missing_ok=True)
    scores = label_scores(probs[rows], torch.from_numpy(codes), model.sieve_eps).numpy()
    save_model(
        folder,
        TrainedWeights.of_state(state),
        prior=model.prior,
        beta=0.0,
        summary=summarize_model(scores, corrupted, probabilities),
        network=job.recipe,
        frozen=False,
        sieve_eps=model.sieve_eps,
        classes=model.classes,
    )
    with job.report.path.open("rb") as source, atomic_write(folder / "report.parquet") as file:
        shutil.copyfileobj(source, file)
    history = [*retrained.history, *(baseline.history if baseline is not None else [])]
    write_table(pa.Table.from_pylist(history), folder / "history.parquet")
    accuracy = None
    if job.test_set is not None:
        accuracy = _accuracy(model, job.test_set, retrained, baseline, processes)
    document = {
        "schema_version": 1,
        "version": __version__,
        "run": str(job.settings.run),
        "output": str(folder),
        "device": processes.device.type,
        "recipe": asdict(job.recipe),
        "rows": job.roles.counts,
        "passes": sum(row["images"] for row in retrained.history),
        "seconds": sum(row["seconds"] for row in retrained.history),
        "accuracy": accuracy,
    }
    write_json(folder / "retrain.json", document)
    if accuracy is not None:
        with atomic_write(folder / "curves.svg") as file:
            title = without_xml_control(printable(folder.name))
            file.write(draw_accuracy(accuracy, title).encode("utf-8", "backslashreplace"))
    return document


def _accuracy(
    model: SavedModel,
    test_set: LabelledTestSet,
    retrained: RetrainResult,
    baseline: RetrainResult | None,
    processes: Processes,
) -> dict[str, Any]:
    """Return the test accuracy per epoch and per class: of the sieve's model, plain CE, and the new model."""
    labels = test_set.labels
    loader = BatchLoader(test_set.pixels, processes.device, statistics=model.statistics)
    predictions = {"before": predict(model.network, loader, flip=model.flip)}
    for name, result in (("baseline", baseline), ("after", retrained)):
        if result is not None:
            predictions[name] = predict(result.state.average, loader, flip=model.flip)
    right = {name: probs.argmax(dim=1) == labels for name, probs in predictions.items()}
    by_class = [
        {
            "label": label,
            "of": int((labels == code).sum()),
            **{name: float(hits[labels == code].double().mean()) for name, hits in right.items()},
        }
        for code, label in enumerate(model.classes)
        if bool((labels == code).any())
    ]
    return {
        "test_rows": len(labels),
        **{name: float(hits.double().mean()) for name, hits in right.items()},
        "after_epochs": [row["test_accuracy"] for row in retrained.history],
        "baseline_epochs": None if baseline is None else [row["test_accuracy"] for row in baseline.history],
        "baseline_best": None if baseline is None else max(row["test_accuracy"] for row in baseline.history),
        "classes": by_class,
    }
