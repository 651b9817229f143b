"""`noisesieve evaluate`: measure a run against right labels, people's decisions, or planted label errors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from noisesieve.commands._open_run import index_of_run, pixel_settings_of_run, read_outcomes, rewrite_run, shows_images
from noisesieve.commands._plant import evaluate_by_planting
from noisesieve.commands.command_settings import ReviewSettings
from noisesieve.commands.measure_settings import EvaluateSettings
from noisesieve.commands.review import PageRequest, write_review
from noisesieve.core.errors import InputError, OutputError
from noisesieve.core.files import atomic_write
from noisesieve.core.progress import Session
from noisesieve.core.publish import unfinished_publication
from noisesieve.core.records import Floats, Recalibration
from noisesieve.core.run_lock import locked
from noisesieve.decisions.resolve import Outcome
from noisesieve.measure import truth
from noisesieve.measure.chart import draw_evaluation
from noisesieve.measure.evaluation import EvaluatedRows, Evaluation, evaluate_rows, labelled_rows
from noisesieve.measure.planting import PlantedEvaluation
from noisesieve.measure.samples import Judgement, judge, wrong_labels
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.report import Report, read_report
from noisesieve.report.run import MAIN, RunFolder
from noisesieve.sieve.recalibrate import apply_shift, recalibrate, undo_shift

__all__ = ["DecidedEvaluation", "Evaluation", "PlantedEvaluation", "evaluate"]


@dataclass(frozen=True)
class DecidedEvaluation:
    """A run against people's decisions. `recalibration` is what the decisions change; `updated` if the run has it."""

    run: str
    judgement: Judgement
    recalibration: Recalibration
    estimated_before: float  # the estimated noise rate
    estimated_after: float
    updated: bool


def evaluate(
    run: Path, settings: EvaluateSettings, *, session: Session
) -> Evaluation | PlantedEvaluation | DecidedEvaluation:
    """Evaluate a run with right labels, with decisions, or with planted flips."""
    folder = run if run.is_dir() else run.parent
    if settings.update and unfinished_publication(folder / MAIN) is not None:  # an update that was stopped
        with locked(folder):
            RunFolder(folder).recover()
    report = read_report(run)
    if settings.plant is not None:
        return evaluate_by_planting(report, settings, settings.plant, session)
    if settings.decisions:
        outcomes, _ = read_outcomes(report, settings.decisions, new_classes=True)
        return _evaluate_with_decisions(report, outcomes, settings, session)
    return _evaluate_with_truth(report, settings, session)


def _evaluate_with_truth(report: Report, settings: EvaluateSettings, session: Session) -> Evaluation:
    """Return precision, recall, ranking and calibration against the right labels, and write the chart."""
    target = settings.picture or report.path.parent / "evaluation.svg"
    right = truth.find_truth(labelled_rows(report), settings.truth, session)
    rows = EvaluatedRows(report, right)
    evaluation = evaluate_rows(rows, str(report.path.parent))
    drawing = draw_evaluation(rows, f"{report.path.parent.name}: margins and ranking")
    try:
        with atomic_write(target) as out:
            out.write(drawing.encode())
    except OutputError as error:
        if settings.picture is not None:
            raise
        session.warn(f"The chart was not written: {error.problem} Choose another path with --picture.")
        return evaluation
    return replace(evaluation, picture=str(target))


def _evaluate_with_decisions(
    report: Report, outcomes: dict[int, Outcome], settings: EvaluateSettings, session: Session
) -> DecidedEvaluation:
    """Return precision and recall by the decisions, and correct the run's probabilities if that is asked for."""
    rows, wrong = wrong_labels(report, outcomes)
    if not len(rows):
        raise InputError("The files have no decision on a usable image.", "Decide something first.")
    now = report.numbers("corruption_probability").astype(np.float64)
    # Rows that the scan already knew, trusted or decided, have a probability of 0 or 1, and keep it.
    known = ~np.isnan(now) & ~report.numbers("trusted")
    earlier = report.summary.recalibration
    before = now if earlier is None else np.where(known, undo_shift(now, earlier), now)
    usable = known[rows]
    recalibration = recalibrate(before[rows[usable]], wrong[usable])
    after = np.where(known, apply_shift(before, recalibration), now)
    if settings.update:
        _update(report, after, recalibration, settings, session)
    return DecidedEvaluation(
        run=str(report.path.parent),
        judgement=judge(report, outcomes),
        recalibration=recalibration,
        estimated_before=float(np.nanmean(before)),
        estimated_after=float(np.nanmean(after)),
        updated=settings.update,
    )


def _update(
    report: Report, probability: Floats, recalibration: Recalibration, settings: EvaluateSettings, session: Session
) -> None:
    """Write the corrected probabilities into report, summary and page. No verdict and no rank changes."""
    folder = report.path.parent
    page = folder / "review.html"
    shown = page.exists()
    with locked(folder):
        RunFolder(folder).recover()
        changed = rewrite_run(report, "corruption_probability", probability, recalibration=recalibration)
    if shown:
        index, shows = index_of_run(report, settings.moved), shows_images(report, settings.moved)
        request = PageRequest(changed, index, ReviewSettings.min_probability, shows=shows)
        with Decoder(pixel_settings_of_run(report), session) as decoder:
            write_review(request, page, decoder, session)
