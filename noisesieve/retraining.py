"""From a finished run to a better model: consistency training (CORES²*) on what the sieve let pass.

REPORT   report     the run            → which rows are clean, which corrupted, which decided by people
DECODE   pixels     the run's dataset  → Pixels at the run's size, and the test set's
RETRAIN  retrain    both               → a model, and plain cross-entropy beside it where asked for
RECORD   the output folder: model.safetensors + model.json, the run's report, history, retrain.json, curves.svg
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save

from noisesieve import __version__, pixels, report
from noisesieve.errors import InputError, OutputError, Stopped, UsageError
from noisesieve.files import digest, locked, replacing, write_json
from noisesieve.job import Job, beside, prepare, recipe_of
from noisesieve.learn.checkpoint import Checkpoints
from noisesieve.learn.feed import Feed
from noisesieve.learn.model import Model, Trained, load_model, rate, save_model
from noisesieve.learn.opinion import alone
from noisesieve.learn.world import World, device_problem
from noisesieve.names import printable, without_xml_control
from noisesieve.records import Ints
from noisesieve.reopen import index_of
from noisesieve.retrain import plan as plans
from noisesieve.retrain.loop import Exam, Material, Retraining, Taught, examine
from noisesieve.retrain.picture import draw
from noisesieve.retrain.plan import RetrainRecipe
from noisesieve.roles import LEARNT, SEEN, roles_of
from noisesieve.settings import RetrainSettings
from noisesieve.watch import Nobody, Stop, Watcher, pause_of

STALE = ("summary.json", "probabilities.parquet", "course.parquet", "division.parquet", "review.html", "curves.svg")


def retrain(settings: RetrainSettings, *, watcher: Watcher | None = None, stop: Stop = lambda: None) -> dict[str, Any]:
    """Retrain a run's model into its own folder; what `retrain.json` says. Under torchrun every rank calls this."""
    if problem := device_problem(settings.device):
        raise UsageError(problem, "Leave --device out, or choose cpu.")
    world = World.join(settings.device)
    if world.leads:
        try:
            return _lead(settings, world, watcher or Nobody(), stop)
        finally:
            world.share("")  # the other ranks may go
    while file := world.share("", pause_of(stop)):
        _teach(json.loads(Path(file).read_text(encoding="utf-8")), world, Nobody(), stop)
    raise Stopped("", exit_code=0)


def _lead(settings: RetrainSettings, world: World, watcher: Watcher, stop: Stop) -> dict[str, Any]:
    """Every stage, in order."""
    made = report.read_report(settings.run)
    model = load_model(made.path.parent, world.device)
    index = index_of(made, settings.data, settings.root)
    roles = roles_of(made, settings, index.root)
    if not (roles.role == LEARNT).any():
        raise InputError(f"{made.path.parent}: no row is clean.", "There is nothing to learn from.")
    folder = report.output_folder(settings.output or beside(made.path.parent), index, watcher)
    if folder.exists() and folder.samefile(made.path.parent):
        raise OutputError(f"{folder}: holds the run itself.", "Choose another folder with -o.")
    with locked(folder):
        job = prepare(made, model, index, roles, settings, report.RunFolder(folder), watcher, pause_of(stop))
        if job is None:
            watcher.note("This retraining is finished already: same settings, same run.")
            known: dict[str, Any] = json.loads((folder / "retrain.json").read_text(encoding="utf-8"))
            return {**known, "run": str(settings.run), "output": str(folder)}
        clean, corrupted = job.rows(LEARNT), job.rows(SEEN)
        watcher.note(describe(job.recipe, len(clean), len(corrupted)))
        taught = _begin(job, "retrain", job.recipe, job.codes, clean, corrupted, world, watcher, stop)
        plain = None
        if settings.baseline == "ce":
            rows = np.flatnonzero((made.verdicts[job.decoded.rows] != "unreadable") & (job.given >= 0))
            passes = job.recipe.passes(len(clean), len(corrupted)) + _passes_before(job)
            fair = plans.baseline(job.recipe, recipe_of(made), rows=len(rows), passes=passes)
            plain = _begin(job, "ce", fair, job.given, rows, rows[:0], world, watcher, stop)
        document = _record(job, taught, plain, world, watcher, stop)
        job.place.write(job.identity, complete=True, version=__version__)
        return document


def _passes_before(job: Job) -> int:
    """Pictures that the scan was trained on, where its weights are where training goes on from."""
    run = recipe_of(job.made)
    if job.recipe.start == "scratch" or run.weights != "none":
        return 0
    history = pq.read_table(job.made.path.parent / "history.parquet").to_pylist()
    return int(sum(row["images_per_second"] * row["train_seconds"] for row in history))


def _initial(job: Job, start: str) -> str | None:
    """The run's weights, backbone included, where every rank finds them."""
    if start == "scratch":
        return None
    file = job.place.checkpoints / "initial.safetensors"
    with replacing(file) as out:
        out.write(save({name: value.contiguous().cpu() for name, value in job.model.network.state_dict().items()}))
    return str(file)


def _begin(
    job: Job,
    name: str,
    recipe: RetrainRecipe,
    labels: Ints,
    clean: Ints,
    corrupted: Ints,
    world: World,
    watcher: Watcher,
    stop: Stop,
) -> Taught:
    """Hand a training to every rank, as plain data, and take part."""
    exam = job.exam
    task = {
        "name": name,
        "recipe": plans.to_document(recipe),
        "pixels": pixels.to_document(job.decoded.pixels),
        "labels": labels.tolist(),
        "clean": clean.tolist(),
        "corrupted": corrupted.tolist(),
        "classes": len(job.model.classes),
        "statistics": list(job.model.statistics),
        "exam": exam and {"pixels": pixels.to_document(exam.pixels), "labels": exam.labels.tolist()},
        "checkpoints": str(job.place.checkpoints),
        "identity": digest({**job.identity, "version": __version__}),
        "initial": _initial(job, recipe.start),
    }
    file = job.place.checkpoints / f"{name}.json"
    write_json(file, task)
    world.share(str(file))
    return _teach(task, world, watcher, stop)


def _teach(task: dict[str, Any], world: World, watcher: Watcher, stop: Stop) -> Taught:
    """One training, from plain data; resumes by itself."""
    recipe = plans.from_document(task["recipe"])
    mean, std = task["statistics"]
    material = Material(
        pixels=pixels.from_document(task["pixels"]),
        labels=torch.tensor(task["labels"]),
        clean=torch.tensor(task["clean"]),
        corrupted=torch.tensor(task["corrupted"], dtype=torch.int64),
        classes=task["classes"],
        statistics=(mean, std),
        initial=None if task["initial"] is None else load_file(task["initial"]),
    )
    exam = task["exam"]
    if exam is not None:
        exam = Exam(pixels.from_document(exam["pixels"]), torch.tensor(exam["labels"]))
    keeper = Checkpoints(Path(task["checkpoints"]) / task["name"], identity=task["identity"], warn=watcher.warn)
    return Retraining(
        material, recipe, exam=exam, name=task["name"], world=world, watcher=watcher, checkpoints=keeper, stop=stop
    ).run()


def _record(
    job: Job, taught: Taught, plain: Taught | None, world: World, watcher: Watcher, stop: Stop
) -> dict[str, Any]:
    """Judge the run's rows by the new weights, for the model's card, and write every file."""
    model, folder = job.model, job.place.folder
    watcher.stage("scoring", len(job.codes))
    feed = Feed(job.decoded.pixels, world.device, statistics=model.statistics)
    probs = examine(taught.state.average, feed, flip=model.flip, state=taught.state, stop=stop)
    watcher.finish()
    rows = np.flatnonzero((job.codes >= 0) & (job.made.verdicts[job.decoded.rows] != "unreadable"))
    codes, corrupted = job.codes[rows], job.roles.role[job.decoded.rows[rows]] != LEARNT
    said = job.made.table["corruption_probability"].to_numpy(zero_copy_only=False).astype(np.float64)
    chances = np.nan_to_num(said[job.decoded.rows[rows]])
    chances = np.where(~corrupted & (codes != job.given[rows]), 0.0, chances)  # corrected: it is wrong no more
    for old in STALE:  # of another run that was replaced
        (folder / old).unlink(missing_ok=True)
    save_model(
        folder,
        Trained.of_state(taught.state),
        prior=model.prior,
        beta=0.0,
        saved=alone(probs[rows], torch.from_numpy(codes), model.sieve_eps).numpy(),
        corrupted=corrupted,
        chances=chances,
        recipe=replace(job.recipe.network, sieve_eps=model.sieve_eps),
        classes=model.classes,
    )
    with job.made.path.open("rb") as source, replacing(folder / "report.parquet") as file:
        shutil.copyfileobj(source, file)
    history = [*taught.history, *(plain.history if plain is not None else [])]
    report.write_table(pa.Table.from_pylist(history), folder / "history.parquet")
    accuracy = None if job.exam is None else _accuracy(model, job.exam, taught, plain, world)
    document = {
        "schema_version": 1,
        "version": __version__,
        "run": str(job.settings.run),
        "output": str(folder),
        "device": world.device.type,
        "recipe": plans.to_document(job.recipe),
        "rows": job.roles.counts,
        "passes": sum(row["images"] for row in taught.history),
        "seconds": sum(row["seconds"] for row in taught.history),
        "accuracy": accuracy,
    }
    write_json(folder / "retrain.json", document)
    if accuracy is not None:
        with replacing(folder / "curves.svg") as file:
            title = without_xml_control(printable(folder.name))
            file.write(draw(accuracy, title).encode("utf-8", "backslashreplace"))
    return document


def _accuracy(model: Model, exam: Exam, taught: Taught, plain: Taught | None, world: World) -> dict[str, Any]:
    """Accuracy on the test set, of each epoch and of each class: the sieve's model, plain CE, the new model."""
    feed, rows = Feed(exam.pixels, world.device, statistics=model.statistics), torch.arange(len(exam.labels))
    answers = {"before": rate(model, feed, rows, device=world.device, done=lambda count: None)}
    for name, found in (("baseline", plain), ("after", taught)):
        if found is not None:
            answers[name] = examine(found.state.average, feed, flip=model.flip, state=found.state)
    right = {name: probs.argmax(dim=1) == exam.labels for name, probs in answers.items()}
    classes = [
        {
            "label": label,
            "of": int((exam.labels == code).sum()),
            **{name: float(hits[exam.labels == code].double().mean()) for name, hits in right.items()},
        }
        for code, label in enumerate(model.classes)
        if bool((exam.labels == code).any())
    ]
    return {
        "test_rows": len(exam.labels),
        **{name: float(hits.double().mean()) for name, hits in right.items()},
        "after_epochs": [row["test_accuracy"] for row in taught.history],
        "baseline_epochs": None if plain is None else [row["test_accuracy"] for row in plain.history],
        "baseline_best": None if plain is None else max(row["test_accuracy"] for row in plain.history),
        "classes": classes,
    }


def describe(recipe: RetrainRecipe, clean: int, corrupted: int) -> str:
    """The recipe in one line."""
    network = recipe.network
    pairs = f", {recipe.unlabelled_batch} unlabelled beside" if recipe.unlabelled_batch else ""
    return (
        f"{clean:,} labels, {corrupted:,} pictures without: {network.backbone} at {network.image_size} px "
        f"from {'the run' if recipe.start == 'run' else 'scratch'}, {recipe.epochs} epochs, batch {network.batch_size}"
        f"{pairs}, lr {network.lr:g}, consistency {recipe.weight:.2g} ({recipe.policy}, target {recipe.target})"
    )
