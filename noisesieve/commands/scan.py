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
from noisesieve.commands._record import record
from noisesieve.commands._train import train, train_network
from noisesieve.commands.review import write_review
from noisesieve.core.command_settings import ReviewSettings
from noisesieve.core.errors import OutputError
from noisesieve.core.files import locked
from noisesieve.core.progress import Session
from noisesieve.core.recipes import recipe_to_document
from noisesieve.core.records import FileFacts, Index, Scores
from noisesieve.core.settings import ScanSettings
from noisesieve.decisions.match import find_decisions
from noisesieve.learn.cost import estimate
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.networks.timm_net import is_timm
from noisesieve.learn.plan import describe, introduce
from noisesieve.learn.training_data import TrainingTask
from noisesieve.report import (
    Report,
    RunFolder,
    output_folder,
    read_report,
)
from noisesieve.report.differences import Identity
from noisesieve.report.model_card import TrainedWeights
from noisesieve.report.run import RunRecord, next_folder
from noisesieve.report.waivers import find_waived, with_waivers

__all__ = ["Report", "scan"]


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
            session.note_all(index.notes)
            session.warn_all(index.warnings)
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
            begun = _begin(run, identity, dataset, settings, fresh=state == "fresh")
            shared = not dataset.recipe.frozen
            return _finish(begun, *train(dataset, settings, run, identity, session), settings, session)
    finally:
        if not shared:
            session.processes.broadcast("")  # no training: the other ranks end


def _cost(dataset: Dataset, session: TrainingSession) -> str:
    """Return what a network costs whose speed nobody knows beforehand."""
    rows, recipe = len(dataset.codes), dataset.recipe
    cost = estimate(recipe, rows=rows, classes=len(dataset.classes), processes=session.processes)
    return (
        f"{recipe.backbone} at {recipe.image_size} px: {cost.images_per_second:,.0f} images/s here, so at most about "
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
        return _brought_up_to_date(run, index, file_facts, settings, session)
    decided = find_decisions(settings.decisions, index, file_facts, session, classes=own.classes)
    dataset = own.dataset(index, file_facts, settings, decided)
    if own.kind == "embeddings":
        session.note(introduce(dataset.recipe, settings.training, beside=None))
        session.note(f"{settings.training.preset}: {describe(dataset.recipe, session.processes)}")
    begun = _begin(run, identity, dataset, settings, fresh=state == "fresh")
    return _finish(begun, *own.train(dataset, session), settings, session)


def _begin(
    run: RunFolder, identity: Identity, dataset: Dataset, settings: ScanSettings, *, fresh: bool
) -> tuple[RunFolder, RunRecord]:
    """Write the record of the unfinished run: from now on the same command resumes it."""
    begun = RunRecord(
        identity,
        version=__version__,
        recipe=recipe_to_document(dataset.recipe),
        location=location_of_data(settings),
    )
    run.begin(begun, dataset.index, dataset.decoded.file_facts, fresh=fresh)
    return run, begun


def _finish(
    begun: tuple[RunFolder, RunRecord],
    dataset: Dataset,
    weights: TrainedWeights | None,
    scores: Scores,
    settings: ScanSettings,
    session: Session,
) -> Report:
    """Decide, write all files of the run as one set, and show them."""
    run, unfinished = begun
    with run.stage() as staged:
        report = record(dataset, weights, scores, unfinished.identity, staged, settings, session)
        run.complete(unfinished, staged)
    report = replace(report, path=run.folder / report.path.name)
    if settings.review:
        _show(report, dataset.index, settings.min_probability, session)
    return report


def _brought_up_to_date(
    run: RunFolder, index: Index, file_facts: FileFacts, settings: ScanSettings, session: Session
) -> Report:
    """Return a finished run's report with the current waivers and groups. No score changes: nothing is trained."""
    session.note("This run is finished already: same settings, same data.")
    if (known := run.read()) is not None and not known.own:
        session.warn("Its run.json is not signed by you: it was made elsewhere, or by an earlier version.")
    if (version := run.version()) != __version__:
        session.note(f"It was made by noisesieve {version}; this is {__version__}.")
    if run.unfinished() is not None:
        session.note("Another scan into this folder was stopped: its own command goes on with it.")
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
