"""`noisesieve retrain` of a network: trained in several ways, compared by given labels that none of them was shown.

REPORT   report    run → which rows are clean, corrupted, or decided by people
DECODE   pixels    the run's dataset → Pixels at the run's size; the test set too
RETRAIN  retrain   all rows, kept rows, + suggestions, + consistency → networks, without a held-out fold; the best again
                   with all rows
RECORD   output folder: model.safetensors, model.json, the run's report, history.parquet, retrain.json, curves.svg
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from noisesieve import __version__
from noisesieve.commands._open_run import index_of_run, pixel_settings_of_run
from noisesieve.commands._retrain_job import RetrainJob, choose_output, known_summary, prepare_retraining, recipe_of_run
from noisesieve.commands._retrain_rows import LABELLED, UNLABELLED, UNUSED, assign_roles, sure_suggestions
from noisesieve.commands._retrain_summaries import (
    ALL,
    CONSISTENT,
    KEPT,
    NETWORK,
    SCAN,
    SUGGESTED,
    CandidateFigures,
    RetrainSummary,
)
from noisesieve.commands._retrain_task import RetrainTask
from noisesieve.commands.command_settings import RetrainSettings
from noisesieve.core.errors import InputError
from noisesieve.core.files import atomic_write, digest, write_json
from noisesieve.core.records import Bools, Ints
from noisesieve.core.run_lock import locked
from noisesieve.core.text import printable, without_xml_control
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.checkpoint import Checkpoints
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.frozen.features import numbered_by_hash
from noisesieve.learn.frozen.folds import assign_folds
from noisesieve.learn.model_summary import summarize_model
from noisesieve.learn.recipes import RetrainRecipe
from noisesieve.learn.score import predict
from noisesieve.learn.second_opinion import label_scores
from noisesieve.measure.accuracy_chart import AccuracyTable, ClassAccuracy, draw_accuracy
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.model_card import ModelCard, TrainedWeights, save_model
from noisesieve.report.report import Report
from noisesieve.report.run import RunFolder, RunRecord
from noisesieve.report.saved_model import load_model
from noisesieve.report.write_tables import write_table
from noisesieve.retrain.comparison import choose
from noisesieve.retrain.data import RetrainData
from noisesieve.retrain.loop import RetrainLoop, RetrainResult
from noisesieve.retrain.retrain_plan import describe_cost, describe_retraining, without_consistency

CANDIDATES = {"all": ALL, "kept": KEPT, "suggestions": SUGGESTED, "consistency": CONSISTENT}
FOLDS, MOST_HELD_OUT = 5, 2000  # a fifth of the rows is held out for the comparison, at most this many
SAVED = "saved"  # the training of what is saved, with all rows


@dataclass(frozen=True)
class TrainedNetwork:
    """One finished training."""

    name: str
    labelled: int  # rows trained on with a label
    result: RetrainResult


def retrain_network(report: Report, settings: RetrainSettings, session: TrainingSession) -> RetrainSummary:
    """Train networks into a folder of their own, save the best, and return the table. This is rank 0."""
    start = time.monotonic()
    model = load_model(report.path.parent, session.device, ranks=False)
    index = index_of_run(report, settings.moved)
    roles = assign_roles(report, settings, index.root)
    if not (roles.role == LABELLED).any():
        raise InputError(f"{report.path.parent}: no row is clean.", "There is nothing to train on.")
    folder = choose_output(report, settings.output, index, session)
    with locked(folder):
        RunFolder(folder).recover()
        as_scanned = replace(settings.pixels, max_pixels=pixel_settings_of_run(report).max_pixels)
        with Decoder(as_scanned, session) as decoder, Decoder(settings.pixels, session) as test_decoder:
            decoders = decoder, test_decoder
            job = prepare_retraining(report, model, index, roles, settings, RunFolder(folder), decoders, session)
        if job is None:
            return known_summary(folder, settings, session)
        session.note(describe_retraining(job.recipe, len(job.rows(LABELLED)), len(job.rows(UNLABELLED))))
        names = settings.candidates or tuple(CANDIDATES)
        held_out = _held_out(job) if len(names) > 1 else np.zeros(len(job.codes), dtype=np.bool_)
        tasks = {CANDIDATES[name]: _task(job, CANDIDATES[name], held_out) for name in names}
        sizes = [(len(task.data.clean), len(task.data.corrupted)) for task in tasks.values()]
        session.note(describe_cost([task.recipe for task in tasks.values()], sizes, _rate_of_scan(report)))
        trained = [
            TrainedNetwork(name, len(task.data.clean), _share_and_train(task, session)) for name, task in tasks.items()
        ]
        hits = _hits(job, trained, held_out, session.device)
        chosen, first = choose(hits, CONSISTENT if CONSISTENT in hits else trained[0].name)
        figures = _figures(job, trained, hits, session.device)
        best = next(one for one in trained if one.name == chosen)
        if held_out.any():
            task = replace(_task(job, chosen, np.zeros_like(held_out)), name=SAVED)
            best = TrainedNetwork(chosen, len(task.data.clean), _share_and_train(task, session))
        every = [*trained, TrainedNetwork(SAVED, best.labelled, best.result)] if held_out.any() else trained
        accuracy = _accuracy(job, every, best, session.device)
        summary = RetrainSummary(
            kind=NETWORK,
            version=__version__,
            run=str(job.settings.run),
            output=str(folder),
            device=session.device.type,
            rows=job.roles.counts,
            candidates=figures,
            chosen=chosen,
            best=first,
            compared_on=int(held_out.sum()),
            test_rows=None if accuracy is None else accuracy.test_rows,
            saved_accuracy=None if accuracy is None else accuracy.epochs[every[-1].name][-1],
            seconds=time.monotonic() - start,
            recipe=job.recipe,
            passes=sum(row.images for one in every for row in one.result.history),
            accuracy=accuracy,
        )
        with job.folder.stage() as staged:
            _record(job, every, best, summary, staged, session)
            job.folder.complete(RunRecord(job.identity, version=__version__), staged)
    return summary


def _rate_of_scan(report: Report) -> float | None:
    """Return how many images per second the scan trained its network on; None if it trained none."""
    history = None if recipe_of_run(report).frozen else report.read_beside("history.parquet")
    rates = [] if history is None else [row["images_per_second"] for row in history.to_pylist()]
    return max((rate for rate in rates if rate), default=None)


def _held_out(job: RetrainJob) -> Bools:
    """Return (M,) the rows that no candidate is trained on: one fold, where equal images stay together."""
    used = np.flatnonzero((job.given >= 0) & (job.roles.role[job.decoded.rows] != UNUSED))
    contents = numbered_by_hash(job.decoded.file_facts.hashes.take(job.decoded.rows))
    folds = max(FOLDS, -(-len(used) // MOST_HELD_OUT))
    labels, groups = torch.from_numpy(job.given[used]), torch.from_numpy(contents[used])
    fold = assign_folds(labels, groups, folds=folds, partitions=1, seed=job.recipe.seed)[:, 0].numpy()
    held_out: Bools = np.zeros(len(job.codes), dtype=np.bool_)
    held_out[used[fold == 0]] = True
    return held_out


def _task(job: RetrainJob, name: str, held_out: Bools) -> RetrainTask:
    """Return the training of one candidate, without the rows that are held out."""
    used, recipe = ~held_out & (job.codes >= 0), job.recipe
    role = job.roles.role[job.decoded.rows]
    labels, labelled, unlabelled = job.codes, used & (role == LABELLED), used & (role == UNLABELLED)
    if name == ALL:
        labels, labelled = job.given, ~held_out & (job.given >= 0) & (role != UNUSED)
    elif name == SUGGESTED:
        suggested, sure = sure_suggestions(job.report, job.decoded.rows, job.model.classes, role)
        sure &= used
        labels, labelled = np.where(sure, suggested, labels), labelled | sure
    if name != CONSISTENT:
        unlabelled = np.zeros_like(used)
        recipe = without_consistency(recipe, kept=int((used & (role == LABELLED)).sum()), rows=int(labelled.sum()))
    return _as_task(job, name, recipe, (labels, np.flatnonzero(labelled), np.flatnonzero(unlabelled)))


def _as_task(job: RetrainJob, name: str, recipe: RetrainRecipe, rows: tuple[Ints, Ints, Ints]) -> RetrainTask:
    """Return one training; `rows` are the labels of all rows, the rows with a label, and those without."""
    labels, labelled, unlabelled = (torch.from_numpy(array) for array in rows)
    initial = None
    if recipe.start == "run":
        initial = {key: value.contiguous().cpu() for key, value in job.model.network.state_dict().items()}
    data = RetrainData(
        job.decoded.pixels,
        labels,
        labelled,
        unlabelled,
        len(job.model.classes),
        statistics=job.model.statistics,
        initial=initial,
    )
    identity = digest({**job.identity, "version": __version__})
    return RetrainTask(name, data, recipe, job.test_set, job.folder.checkpoints, identity)


def _share_and_train(task: RetrainTask, session: TrainingSession) -> RetrainResult:
    """Pass a training to the other ranks, if there are any, and take part in it."""
    if session.processes.size > 1:
        folder = task.checkpoints / f"task-{_file_name(task.name)}"
        task.save(folder)
        session.processes.broadcast(str(folder))
    return train_task(task, session)


def train_task(task: RetrainTask, session: TrainingSession) -> RetrainResult:
    """Run one training, from its last checkpoint if there is one. Every rank calls this."""
    folder = task.checkpoints / _file_name(task.name)
    checkpoints = Checkpoints.of_rank(folder, task.identity, session)
    with checkpoints:
        return RetrainLoop(
            task.data, task.recipe, session, name=task.name, test_set=task.test_set, checkpoints=checkpoints
        ).run()


def _file_name(name: str) -> str:
    return next((short for short, long in CANDIDATES.items() if long == name), name)


def _hits(job: RetrainJob, trained: list[TrainedNetwork], held_out: Bools, device: torch.device) -> dict[str, Bools]:
    """Return by candidate whether it predicts the given label of each row that is held out."""
    rows = torch.from_numpy(np.flatnonzero(held_out))
    loader = BatchLoader(job.decoded.pixels, device, statistics=job.model.statistics)
    probs = ((one.name, predict(one.result.state.average, loader, rows, flip=job.model.flip)) for one in trained)
    return {name: part.argmax(dim=1).numpy() == job.given[held_out] for name, part in probs}


def _figures(
    job: RetrainJob, trained: list[TrainedNetwork], hits: dict[str, Bools], device: torch.device
) -> list[CandidateFigures]:
    """Return the table: the scan's own model first, then every candidate, by the given labels of the held-out rows."""
    own = None
    if job.test_set is not None:
        test_loader = BatchLoader(job.test_set.pixels, device, statistics=job.model.statistics)
        predicted = predict(job.model.network, test_loader, flip=job.model.flip).argmax(dim=1)
        own = float((predicted == job.test_set.labels).double().mean())
    agreement = {name: float(own_hits.mean()) for name, own_hits in hits.items() if len(own_hits)}
    seen = int((job.given >= 0).sum())
    return [
        CandidateFigures(SCAN, seen, None, None, own),
        *(
            CandidateFigures(one.name, one.labelled, None, agreement.get(one.name), _epochs(one)[-1] if own else None)
            for one in trained
        ),
    ]


def _epochs(one: TrainedNetwork) -> list[float]:
    return [row.test_accuracy for row in one.result.history if row.test_accuracy is not None]


def _accuracy(
    job: RetrainJob, trained: list[TrainedNetwork], best: TrainedNetwork, device: torch.device
) -> AccuracyTable | None:
    """Return the test accuracy per epoch of every training, and per class of the scan's own model and the saved one."""
    if (test_set := job.test_set) is None:
        return None
    loader = BatchLoader(test_set.pixels, device, statistics=job.model.statistics)
    right = [
        (predict(network, loader, flip=job.model.flip).argmax(dim=1) == test_set.labels).double()
        for network in (job.model.network, best.result.state.average)
    ]
    by_class = [
        ClassAccuracy(label, int(of.sum()), *(float(hits[of].mean()) for hits in right))
        for code, label in enumerate(job.model.classes)
        if bool((of := test_set.labels == code).any())
    ]
    epochs = {one.name: _epochs(one) for one in trained}
    return AccuracyTable(len(test_set.labels), float(right[0].mean()), epochs, by_class)


def _record(
    job: RetrainJob,
    trained: list[TrainedNetwork],
    best: TrainedNetwork,
    summary: RetrainSummary,
    folder: Path,
    session: TrainingSession,
) -> None:
    """Score the run's rows with the new weights, for the model card, and write every file to a folder."""
    model, home, state = job.model, job.folder.folder, best.result.state
    session.stage("scoring", len(job.codes))
    loader = BatchLoader(job.decoded.pixels, session.device, statistics=model.statistics)
    probs = predict(state.average, loader, flip=model.flip, done=lambda count: session.pause())
    session.finish()
    rows = np.flatnonzero((job.codes >= 0) & (job.report.verdicts[job.decoded.rows] != "unreadable"))
    codes, corrupted = job.codes[rows], job.roles.role[job.decoded.rows[rows]] != LABELLED
    column = job.report.numbers("corruption_probability").astype(np.float64)
    probabilities = np.nan_to_num(column[job.decoded.rows[rows]])
    probabilities = np.where(~corrupted & (codes != job.given[rows]), 0.0, probabilities)  # corrected labels are right
    scores = label_scores(probs[rows], torch.from_numpy(codes), model.sieve_eps).numpy()
    card = ModelCard(
        network=job.recipe,
        frozen=False,
        classes=model.classes,
        prior=model.prior,
        beta=0.0,
        sieve_eps=model.sieve_eps,
        summary=summarize_model(scores, corrupted, probabilities),
    )
    save_model(folder, TrainedWeights.of_state(state), card)
    with job.report.path.open("rb") as source, atomic_write(folder / "report.parquet") as file:
        shutil.copyfileobj(source, file)
    history = [asdict(row) for one in trained for row in one.result.history]
    write_table(pa.Table.from_pylist(history), folder / "history.parquet")
    write_json(folder / "retrain.json", summary.to_document())
    if summary.accuracy is not None:
        with atomic_write(folder / "curves.svg") as file:
            title = without_xml_control(printable(home.name))
            file.write(draw_accuracy(summary.accuracy, title).encode("utf-8", "backslashreplace"))
