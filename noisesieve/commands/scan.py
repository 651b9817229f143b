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

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from noisesieve import __version__, pixels, sources
from noisesieve.commands._open_run import rewrite_run
from noisesieve.commands._own_vectors import OwnVectors, validate_vectors
from noisesieve.commands._prepare import (
    Dataset,
    bytes_needed,
    digest_of_decisions,
    guess_size,
    identity_of_run,
    location_of_data,
    prepare_dataset,
    require_column,
    validate_settings,
)
from noisesieve.commands._train import train, train_network
from noisesieve.commands.review import write_review
from noisesieve.core.command_settings import ReviewSettings
from noisesieve.core.errors import OutputError
from noisesieve.core.files import locked, write_json
from noisesieve.core.progress import Session
from noisesieve.core.recipes import recipe_to_document
from noisesieve.core.records import FileFacts, Index, Recalibration, Scores, Verdicts
from noisesieve.core.settings import ScanSettings
from noisesieve.core.summary import TrainingSummary
from noisesieve.decisions.match import find_decisions
from noisesieve.learn.cost import estimate
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.networks.timm_net import is_timm
from noisesieve.learn.plan import describe, introduce
from noisesieve.learn.training_data import TrainingTask
from noisesieve.report import (
    Report,
    ReportFacts,
    ReportInputs,
    RunFolder,
    build_table,
    output_folder,
    probabilities_table,
    read_report,
    summarize,
    write_division,
    write_history,
    write_margin_history,
    write_table,
)
from noisesieve.report.model_card import ModelCard, TrainedWeights, save_model
from noisesieve.report.run import Identity, RunRecord, next_folder
from noisesieve.report.waivers import find_waived, with_waivers
from noisesieve.sieve.calibrate import summarize_model
from noisesieve.sieve.decide import decide
from noisesieve.sieve.recalibrate import apply_shift, recalibrate

__all__ = ["Report", "scan"]

MOST_PROBABILITIES = 10**8  # N * K up to which probabilities.parquet is written by default


def scan(
    settings: ScanSettings,
    *,
    session: Session | None = None,
    change: Callable[[Index], Index] = lambda index: index,
) -> Report | None:
    """Scan a dataset into its run folder and return the report. Under torchrun every rank calls this.

    Ranks other than 0 only help with the training and return None. `change` may replace labels of the index before
    training: `evaluate --plant` uses it.
    """
    validate_vectors(settings)
    validate_settings(settings)
    if settings.has_vectors:
        settings = replace(settings, source=replace(settings.source, images=False))
    joined = TrainingSession.join(settings.device, session)
    if joined.processes.is_leader:
        return _lead(settings, joined, change)
    if folder := joined.processes.broadcast("", joined.pause):
        quiet = TrainingSession(stop=joined.stop, processes=joined.processes)
        train_network(TrainingTask.load(Path(folder)), quiet)
    return None


def _lead(settings: ScanSettings, session: TrainingSession, change: Callable[[Index], Index]) -> Report:
    """Run every stage, in order. This is rank 0, or the only process."""
    shared = False
    try:
        index = change(sources.read(settings.source))
        require_column(index, settings.group_by)
        folder = output_folder(settings.output, index, session)
        if settings.decisions and settings.output is None:
            folder = next_folder(folder, digest_of_decisions(settings))
        with locked(folder):
            for note in index.notes:
                session.note(note)
            run = RunFolder(folder)
            run.recover()
            if (own := OwnVectors.read(settings, index, session)) is not None:
                return _scan_vectors(own, run, index, settings, session)
            again = run.is_finished() and not settings.force  # most likely the same run: then no pixels are needed
            ahead = None if again else guess_size(index, settings, session)
            reading = session.without_time_limit() if again else session
            file_facts = pixels.inspect_files(index, settings.pixels, reading, ahead=ahead)
            identity = identity_of_run(settings, index, file_facts, session.device.type)
            state = run.find_state(identity, index, file_facts, force=settings.force)
            if state == "finished":
                session.note("This run is finished already: same settings, same data.")
                if (version := run.version()) != __version__:
                    session.note(f"It was made by noisesieve {version}; this is {__version__}.")
                if run.unfinished() is not None:
                    session.note("Another scan into this folder was stopped: its own command goes on with it.")
                return _brought_up_to_date(run, index, file_facts, settings, session)
            scratch = run.checkpoints / "pixels"
            decided = find_decisions(settings.decisions, index, file_facts, session)
            dataset = prepare_dataset(
                index, file_facts, settings, session, scratch=scratch, ahead=ahead, decided=decided
            )
            run.require_free_space(bytes_needed(dataset, settings))
            session.note(introduce(dataset.recipe, settings.training, beside=dataset.beside))
            session.note(f"{settings.training.preset}: {describe(dataset.recipe, session.processes)}")
            if is_timm(dataset.recipe.backbone):
                session.note(_cost(dataset, session))
            record = RunRecord(
                identity,
                version=__version__,
                recipe=recipe_to_document(dataset.recipe),
                location=location_of_data(settings),
            )
            run.begin(record, index, file_facts, fresh=state == "fresh")
            shared = not dataset.recipe.frozen
            dataset, weights, scores = train(dataset, settings, run, identity, session)
            with run.stage() as staged:
                report = _record(dataset, weights, scores, identity, staged, settings, session)
                run.complete(record, staged)
            report = replace(report, path=folder / report.path.name)
            if settings.review:
                _show(report, index, settings.min_probability, session)
            return report
    finally:
        if not shared:
            session.processes.broadcast("")  # no training: the other ranks end


def _cost(dataset: Dataset, session: TrainingSession) -> str:
    """Return what a network costs whose speed nobody knows beforehand."""
    rows, recipe = len(dataset.codes), dataset.recipe
    cost = estimate(recipe, rows=rows, classes=len(dataset.classes), processes=session.processes)
    return (
        f"{recipe.backbone} at {recipe.image_size} px sees {cost.images_per_second:,.0f} images/s here: at most about "
        f"{cost.seconds / 60:,.1f} min, unless its features are in the cache. A smaller --image-size is faster."
    )


def _scan_vectors(
    own: OwnVectors, run: RunFolder, index: Index, settings: ScanSettings, session: TrainingSession
) -> Report:
    """Run the stages of a scan whose rows have vectors instead of images."""
    file_facts = own.file_facts()
    identity = own.identity(settings, index, file_facts, session.device.type)
    state = run.find_state(identity, index, file_facts, force=settings.force)
    if state == "finished":
        session.note("This run is finished already: same settings, same data.")
        return _brought_up_to_date(run, index, file_facts, settings, session)
    decided = find_decisions(settings.decisions, index, file_facts, session, classes=own.classes)
    dataset = own.dataset(index, file_facts, settings, decided)
    if own.kind == "embeddings":
        session.note(introduce(dataset.recipe, settings.training, beside=None))
        session.note(f"{settings.training.preset}: {describe(dataset.recipe, session.processes)}")
    record = RunRecord(
        identity,
        version=__version__,
        recipe=recipe_to_document(dataset.recipe),
        location=location_of_data(settings),
    )
    run.begin(record, index, file_facts, fresh=state == "fresh")
    dataset, weights, scores = own.train(dataset, session)
    with run.stage() as staged:
        report = _record(dataset, weights, scores, identity, staged, settings, session)
        run.complete(record, staged)
    report = replace(report, path=run.folder / report.path.name)
    if settings.review:
        _show(report, index, settings.min_probability, session)
    return report


# DECIDE and RECORD


def _record(
    dataset: Dataset,
    weights: TrainedWeights | None,
    scores: Scores,
    identity: Identity,
    folder: Path,
    settings: ScanSettings,
    session: Session,
) -> Report:
    """Decide on every row and write the files of the run to a folder."""
    recipe, classes = dataset.recipe, dataset.classes
    verdicts = decide(scores, dataset.given_codes, eps=recipe.sieve_eps, trusted=dataset.settled)
    verdicts, recalibration = _corrected(verdicts, dataset)
    index, file_facts = dataset.index, dataset.decoded.file_facts
    waived, broken = find_waived(settings.waivers, index, file_facts.sha256)
    session.warn_all(broken)
    inputs = ReportInputs(
        index,
        file_facts,
        dataset.decoded.rows,
        classes,
        dataset.given_codes,
        scores,
        verdicts,
        waived=waived,
        decided=dataset.decided,
    )
    table = build_table(inputs)
    facts = ReportFacts(
        version=__version__,
        classes=classes,
        prior=scores.prior.tolist(),
        beta=scores.beta,
        sieve_eps=recipe.sieve_eps,
        settings={**identity, "recipe": recipe_to_document(recipe)},
        threads=torch.get_num_threads(),
        fingerprint=identity["fingerprint"],
        label_column=index.label_column,
    )
    write_table(table, folder / "report.parquet", facts.to_document())
    if settings.probabilities == "all" or (
        settings.probabilities == "auto" and scores.probs.size <= MOST_PROBABILITIES
    ):
        write_table(probabilities_table(inputs), folder / "probabilities.parquet", {"classes": classes})
    if scores.history:
        write_history(scores.history, folder / "history.parquet")
    write_margin_history(inputs, folder / "margin_history.parquet")
    assert scores.facts is not None
    training = TrainingSummary(scores.facts, "cpu" if weights is None else weights.device, recipe)
    summary = summarize(
        table,
        classes=classes,
        undecided=verdicts.undecided,
        training=training,
        group_by=settings.group_by,
        recalibration=recalibration,
    )
    write_json(folder / "summary.json", summary.to_document())
    write_division(inputs, folder / "division.parquet")
    if weights is not None:
        _save_model(folder, dataset, weights, scores, verdicts)
    for row in summary.classes:
        if row.of and row.rows == row.of:
            session.warn(f"Class '{row.label}': every row is flagged. Look at some of its images first.")
    return Report(table, facts, folder / "report.parquet", summary)


def _save_model(folder: Path, dataset: Dataset, weights: TrainedWeights, scores: Scores, verdicts: Verdicts) -> None:
    """Write the weights with their card, for `check` and `retrain`."""
    recipe = dataset.recipe
    assert scores.saved_model_scores is not None
    card = ModelCard(
        network=recipe,
        frozen=recipe.frozen,
        classes=dataset.classes,
        prior=scores.prior.tolist(),
        beta=scores.beta,
        sieve_eps=recipe.sieve_eps,
        summary=summarize_model(scores.saved_model_scores, verdicts.corrupted, verdicts.corruption_probability),
    )
    save_model(folder, weights, card)


def _corrected(verdicts: Verdicts, dataset: Dataset) -> tuple[Verdicts, Recalibration | None]:
    """Return the verdicts with probabilities that the decisions corrected. A decided row is known: 0 or 1."""
    if not dataset.decided:
        return verdicts, None
    rows = dataset.decoded.rows
    labelled = {row: decided for row, decided in dataset.decided.items() if decided.label is not None}
    known = np.isin(rows, list(labelled))
    # A label that `apply` has corrected since is right by now: it says nothing about this model's probabilities.
    telling = np.isin(rows, [row for row, decided in labelled.items() if not decided.applied])
    wrong = dataset.codes != dataset.given_codes
    before = verdicts.corruption_probability
    found = recalibrate(before[telling], wrong[telling]) if telling.any() else None
    shifted = before if found is None else apply_shift(before, found)
    return replace(verdicts, corruption_probability=np.where(known, wrong.astype(np.float64), shifted)), found


def _brought_up_to_date(
    run: RunFolder, index: Index, file_facts: FileFacts, settings: ScanSettings, session: Session
) -> Report:
    """Return a finished run's report with the current waivers and groups. No score changes: nothing is trained."""
    report = read_report(run.folder)
    waived, broken = find_waived(settings.waivers, index, file_facts.sha256)
    session.warn_all(broken)
    grouped = report.summary.groups
    same = np.array_equal(waived, report.table["waived"].to_numpy(zero_copy_only=False))
    if same and (settings.group_by is None or (grouped is not None and grouped.column == settings.group_by)):
        if settings.review and not (run.folder / "review.html").exists():  # it was stopped while it wrote the page
            _show(report, index, settings.min_probability, session)
        return report
    report = rewrite_run(report, with_waivers(report.table, waived), group_by=settings.group_by)
    if not same:
        session.note("The waivers have changed: report and summary are updated.")
    if settings.review:
        _show(report, index, settings.min_probability, session)
    return report


# SHOW


def _show(report: Report, index: Index, least: float, session: Session) -> None:
    """Write the review page. The run is complete without it, so an error here is only a warning.

    A run that is stopped here is finished; the same command again writes the page.
    """
    page = report.path.parent / "review.html"
    try:
        write_review(report, index, page, limit=ReviewSettings.limit, least=least, session=session)
    except (OutputError, OSError) as error:
        session.warn(f"The run is complete, but its review page is missing ({error}). `noisesieve review` writes it.")
