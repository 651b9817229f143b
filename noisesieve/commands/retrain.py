"""`noisesieve retrain`: consistency training (CORES²*) on the clean / corrupted split of a finished run.

REPORT   report    run → which rows are clean, corrupted, or decided by people
DECODE   pixels    the run's dataset → Pixels at the run's size; the test set too
RETRAIN  retrain   both → a model; plain cross-entropy beside it with --baseline ce
RECORD   output folder: model.safetensors, model.json, the run's report, history.parquet, retrain.json, curves.svg
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from noisesieve import __version__
from noisesieve.commands._open_run import index_of_run, pixel_settings_of_run
from noisesieve.commands._own_vectors import kind_of_vectors, refuse_vectors
from noisesieve.commands._retrain_heads import retrain_heads
from noisesieve.commands._retrain_job import RetrainJob, choose_output, prepare_retraining, recipe_of_run
from noisesieve.commands._retrain_rows import LABELLED, UNLABELLED, assign_roles
from noisesieve.commands._retrain_summaries import HeadsRetrainSummary, RetrainSummary
from noisesieve.commands._retrain_task import RetrainTask
from noisesieve.commands.command_settings import RetrainSettings
from noisesieve.core.errors import InputError, StateError, UsageError
from noisesieve.core.files import atomic_write, digest, write_json
from noisesieve.core.progress import Session
from noisesieve.core.records import Ints
from noisesieve.core.run_lock import locked
from noisesieve.core.text import printable, without_xml_control
from noisesieve.core.untrusted import read_json
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.checkpoint import Checkpoints
from noisesieve.learn.device import require_device
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.model_summary import summarize_model
from noisesieve.learn.plan import is_gpu
from noisesieve.learn.recipes import RetrainRecipe
from noisesieve.learn.score import predict
from noisesieve.learn.second_opinion import label_scores
from noisesieve.measure.accuracy_chart import MODELS, AccuracyTable, ClassAccuracy, draw_accuracy
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.model_card import ModelCard, TrainedWeights, save_model
from noisesieve.report.report import Report, read_report, write_table
from noisesieve.report.run import RunFolder, RunRecord
from noisesieve.report.saved_model import SavedModel, load_model
from noisesieve.retrain.data import LabelledTestSet, RetrainData
from noisesieve.retrain.loop import RetrainLoop, RetrainResult
from noisesieve.retrain.retrain_plan import describe_retraining, plan_baseline
from noisesieve.retrain.retrain_settings import RetrainOptions

__all__ = ["MODELS", "HeadsRetrainSummary", "RetrainSummary", "retrain"]


def retrain(
    settings: RetrainSettings, *, session: Session | None = None
) -> RetrainSummary | HeadsRetrainSummary | None:
    """Retrain a run's model into its own folder and return retrain.json. Under torchrun every rank calls this.

    Heads on stored features for a frozen run, unless the user wants the whole network.

    Ranks other than 0 only help with the training and return None.
    """
    require_device(settings.device)
    joined = TrainingSession.join(settings.device, session)
    if joined.processes.is_leader:
        try:
            return _retrain_and_record(settings, joined)
        finally:
            joined.processes.broadcast("")  # no further training: the other ranks end
    quiet = TrainingSession(stop=joined.stop, processes=joined.processes)
    while folder := joined.processes.broadcast("", joined.pause):
        _train(RetrainTask.load(Path(folder)), quiet)
    return None


def _trains_heads(report: Report, settings: RetrainSettings, device: str) -> bool:
    """Return True if heads on the run's features are trained. Options of a network are refused then."""
    if not report.summary.training.recipe.frozen:
        if settings.freeze:
            raise UsageError("--freeze: the run trained a whole network and has no features.", "Leave it out.")
        return False
    vectors = kind_of_vectors(report) is not None
    if vectors and settings.freeze is False:
        raise UsageError("--no-freeze: the run has embeddings and no images.", "Leave it out.")
    if not (vectors or settings.freeze or (settings.freeze is None and not is_gpu(device))):
        return False
    plain = RetrainOptions(seed=settings.training.seed, relabel=settings.training.relabel)
    if settings.training != plain:
        name = next(name for name, value in vars(settings.training).items() if value != getattr(plain, name))
        flag = "--" + name.replace("_", "-")
        raise UsageError(f"{flag}: only for a network; here heads are trained.", "Leave it out, or pass --no-freeze.")
    return True


def _retrain_and_record(settings: RetrainSettings, session: TrainingSession) -> RetrainSummary | HeadsRetrainSummary:
    """Run every stage, in order. This is rank 0, or the only process."""
    report = read_report(settings.run)
    refuse_vectors(report, "retrain", "predictions")
    if _trains_heads(report, settings, session.device.type):
        return retrain_heads(report, settings, session)
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
            session.note("This retraining is finished already: same settings, same run.")
            if (made := RunFolder(folder).read()) is not None and not made.own:
                session.warn("Its run.json is not signed by you: it was made elsewhere, or by an earlier version.")
            try:
                known = RetrainSummary.from_document(read_json(folder / "retrain.json"))
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise StateError(f"{folder / 'retrain.json'}: damaged ({error}).", "Retrain with --force.") from error
            return replace(known, run=str(settings.run), output=str(folder))
        clean, corrupted = job.rows(LABELLED), job.rows(UNLABELLED)
        session.note(describe_retraining(job.recipe, len(clean), len(corrupted)))
        retrained = _share_and_train(_task(job, "retrain", job.recipe, (job.codes, clean, corrupted)), session)
        baseline = None
        if settings.baseline == "ce":
            rows = np.flatnonzero((report.verdicts[job.decoded.rows] != "unreadable") & (job.given >= 0))
            images = job.recipe.image_count(len(clean), len(corrupted)) + _images_of_scan(job)
            fair = plan_baseline(job.recipe, recipe_of_run(report), rows=len(rows), passes=images)
            baseline = _share_and_train(_task(job, "ce", fair, (job.given, rows, rows[:0])), session)
        with job.folder.stage() as staged:
            summary = _record(job, retrained, baseline, staged, session)
            job.folder.complete(RunRecord(job.identity, version=__version__), staged)
        return summary


def _images_of_scan(job: RetrainJob) -> int:
    """Return the number of images that the scan trained on, if retraining continues from its weights; else 0."""
    run = recipe_of_run(job.report)
    if job.recipe.start == "scratch" or run.weights != "none":
        return 0
    history = job.report.read_beside("history.parquet")
    rows = [] if history is None else history.to_pylist()
    return int(sum(row["images_per_second"] * row["train_seconds"] for row in rows))


def _task(job: RetrainJob, name: str, recipe: RetrainRecipe, rows: tuple[Ints, Ints, Ints]) -> RetrainTask:
    """Return one training; `rows` are the labels of all rows, the clean rows, and the corrupted rows."""
    labels, clean, corrupted = (torch.from_numpy(array) for array in rows)
    initial = None
    if recipe.start == "run":
        initial = {key: value.contiguous().cpu() for key, value in job.model.network.state_dict().items()}
    data = RetrainData(
        job.decoded.pixels,
        labels,
        clean,
        corrupted,
        len(job.model.classes),
        statistics=job.model.statistics,
        initial=initial,
    )
    identity = digest({**job.identity, "version": __version__})
    return RetrainTask(name, data, recipe, job.test_set, job.folder.checkpoints, identity)


def _share_and_train(task: RetrainTask, session: TrainingSession) -> RetrainResult:
    """Pass a training to the other ranks, if there are any, and take part in it."""
    if session.processes.size > 1:
        folder = task.checkpoints / f"task-{task.name}"
        task.save(folder)
        session.processes.broadcast(str(folder))
    return _train(task, session)


def _train(task: RetrainTask, session: TrainingSession) -> RetrainResult:
    """Run one training, from its last checkpoint if there is one."""
    checkpoints = Checkpoints(task.checkpoints / task.name, identity=task.identity, warn=session.warn)
    loop = RetrainLoop(task.data, task.recipe, session, name=task.name, test_set=task.test_set, checkpoints=checkpoints)
    return loop.run()


def _record(
    job: RetrainJob, retrained: RetrainResult, baseline: RetrainResult | None, folder: Path, session: TrainingSession
) -> RetrainSummary:
    """Score the run's rows with the new weights, for the model card, and write every file to a folder."""
    model, home, state = job.model, job.folder.folder, retrained.state
    session.stage("scoring", len(job.codes))
    loader = BatchLoader(job.decoded.pixels, session.device, statistics=model.statistics)
    probs = predict(state.average, loader, flip=model.flip, done=lambda count: session.pause())
    session.finish()
    rows = np.flatnonzero((job.codes >= 0) & (job.report.verdicts[job.decoded.rows] != "unreadable"))
    codes, corrupted = job.codes[rows], job.roles.role[job.decoded.rows[rows]] != LABELLED
    column = job.report.table["corruption_probability"].to_numpy(zero_copy_only=False).astype(np.float64)
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
    history = [*retrained.history, *(baseline.history if baseline is not None else [])]
    write_table(pa.Table.from_pylist([asdict(row) for row in history]), folder / "history.parquet")
    accuracy = None
    if job.test_set is not None:
        accuracy = _accuracy(model, job.test_set, retrained, baseline, session.device)
    summary = RetrainSummary(
        version=__version__,
        run=str(job.settings.run),
        output=str(home),
        device=session.device.type,
        recipe=job.recipe,
        rows=job.roles.counts,
        passes=sum(row.images for row in retrained.history),
        seconds=sum(row.seconds for row in retrained.history),
        accuracy=accuracy,
    )
    write_json(folder / "retrain.json", summary.to_document())
    if accuracy is not None:
        with atomic_write(folder / "curves.svg") as file:
            title = without_xml_control(printable(home.name))
            file.write(draw_accuracy(accuracy, title).encode("utf-8", "backslashreplace"))
    return summary


def _accuracy(
    model: SavedModel,
    test_set: LabelledTestSet,
    retrained: RetrainResult,
    baseline: RetrainResult | None,
    device: torch.device,
) -> AccuracyTable:
    """Return the test accuracy per epoch and per class: of the sieve's model, plain CE, and the new model."""
    labels = test_set.labels
    loader = BatchLoader(test_set.pixels, device, statistics=model.statistics)
    predictions = {"before": predict(model.network, loader, flip=model.flip)}
    for name, result in (("baseline", baseline), ("after", retrained)):
        if result is not None:
            predictions[name] = predict(result.state.average, loader, flip=model.flip)
    right = {name: (probs.argmax(dim=1) == labels).double() for name, probs in predictions.items()}
    by_class = [
        ClassAccuracy(
            label,
            int((labels == code).sum()),
            {name: float(hits[labels == code].mean()) for name, hits in right.items()},
        )
        for code, label in enumerate(model.classes)
        if bool((labels == code).any())
    ]
    return AccuracyTable(
        test_rows=len(labels),
        accuracy={name: float(hits.mean()) for name, hits in right.items()},
        after_epochs=_epochs(retrained),
        baseline_epochs=None if baseline is None else _epochs(baseline),
        classes=by_class,
    )


def _epochs(result: RetrainResult) -> list[float]:
    return [row.test_accuracy for row in result.history if row.test_accuracy is not None]
