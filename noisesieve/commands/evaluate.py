"""`noisesieve evaluate`: compare a run with known right labels, or with label errors planted for the purpose.

With `--plant`, known flips are planted into clean rows of the run, with the label pairs of the run's own
suspects, and the dataset is scanned again with the same settings. The result is an estimate: rows that the first scan
flagged take no part (some of them are false alarms), and wrong labels that it missed count as false alarms when the
second scan finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from noisesieve.bench import truth
from noisesieve.bench.chart import draw_evaluation
from noisesieve.bench.evaluation import EvaluatedRows, Evaluation, evaluate_rows, labelled_rows
from noisesieve.bench.metrics import Calibration, Detection, average_precision, calibration, detection
from noisesieve.commands._open_run import require_same_rows, settings_of_run
from noisesieve.commands.scan import scan
from noisesieve.core.errors import InputError, OutputError
from noisesieve.core.files import atomic_write, digest
from noisesieve.core.intervals import wilson_interval
from noisesieve.core.measure_settings import EvaluateSettings
from noisesieve.core.progress import Session
from noisesieve.core.records import Bools, Index, Ints
from noisesieve.report import Report, read_report

__all__ = ["Evaluation", "PlantedEvaluation", "draw_flips", "evaluate"]


@dataclass(frozen=True)
class PlantedEvaluation:
    """A second scan against the flips that were planted for it, on the rows that were clean before."""

    run: str
    planted: int
    measured: int
    corrupted: Detection
    recall_interval: tuple[float, float]
    precision_interval: tuple[float, float]
    false_alarm_rate: float
    precision_at_own_rate: float | None
    own_rate: float
    average_precision: float | None
    calibration: Calibration
    suspects_found_again: int
    suspects: int
    lost_classes: list[str]  # every row is flagged: flips into them are always found, so the figures mean nothing


def evaluate(run: Path, settings: EvaluateSettings, *, session: Session) -> Evaluation | PlantedEvaluation:
    """Evaluate a run with right labels, or with planted flips."""
    report = read_report(run)
    if settings.plant is None:
        return _evaluate_with_truth(report, settings, session)
    return _evaluate_by_planting(report, settings, settings.plant, session)


def _evaluate_with_truth(report: Report, settings: EvaluateSettings, session: Session) -> Evaluation:
    """Return precision, recall, ranking and calibration against the right labels, and write the chart."""
    target = settings.picture or report.path.parent / "evaluation.svg"
    right = truth.find_truth(labelled_rows(report), settings.truth, session)
    rows = EvaluatedRows(report, right)
    found = evaluate_rows(rows, str(report.path.parent))
    drawing = draw_evaluation(rows, f"{report.path.parent.name}: margins and ranking")
    try:
        with atomic_write(target) as out:
            out.write(drawing.encode())
    except OutputError as error:
        if settings.picture is not None:
            raise
        session.warn(f"The chart was not written: {error.problem} Choose another path with --picture.")
        return found
    return replace(found, picture=str(target))


def _evaluate_by_planting(
    report: Report, settings: EvaluateSettings, share: float, session: Session
) -> PlantedEvaluation:
    """Plant flips into `share` of the clean rows, scan again, and measure on the rows that were clean before."""
    scanned, seed = settings_of_run(report, settings.data, settings.root), settings.seed
    clean = report.verdicts == "clean"
    chosen, labels = draw_flips(report, clean, share=share, seed=seed)
    mark = digest({"run": report.facts.settings, "data": report.facts.fingerprint})[:8]
    folder = report.path.parent / f"planted-{share:g}-seed-{seed}-{mark}"  # one folder per run that was evaluated
    session.note(f"{len(chosen):,} flips planted into {int(clean.sum()):,} clean rows; scanning into {folder}.")
    again = scan(
        replace(scanned, output=folder, review=False),
        session=session,
        change=_relabel(report, chosen, labels),
    )
    assert again is not None  # there is one process
    planted = np.zeros(len(clean), dtype=np.bool_)
    planted[chosen] = True
    return _measure_planted(report, again, planted, clean)


def draw_flips(report: Report, clean: Bools, *, share: float, seed: int) -> tuple[Ints, list[str]]:
    """Choose clean rows and new labels; pairs are sampled in proportion to their count among suspects, plus one."""
    classes: list[str] = report.facts.classes
    number = {name: i for i, name in enumerate(classes)}
    rows = np.flatnonzero(clean)
    count = round(share * len(rows))
    if count == 0:
        raise InputError(f"{share:.1%} of {len(rows):,} clean rows is less than one row.", "Plant a larger share.")
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(rows, count, replace=False)).astype(np.int64)
    odds = np.ones((len(classes), len(classes)))  # row: suggested class; column: given class
    suspects = report.corrupted
    for given, suggested in zip(suspects["label"].to_pylist(), suspects["suggested_label"].to_pylist(), strict=True):
        if suggested is not None:
            odds[number[suggested], number[given]] += 1
    np.fill_diagonal(odds, 0.0)
    steps = np.cumsum(odds / odds.sum(axis=1, keepdims=True), axis=1)
    given = report.table["label"].take(pa.array(chosen)).to_pylist()
    shown = np.array([number[label] for label in given], dtype=np.int64)
    drawn = (steps[shown] < rng.random(count)[:, None]).sum(axis=1).clip(max=len(classes) - 1)
    return chosen, [classes[i] for i in drawn.tolist()]


def _relabel(report: Report, chosen: Ints, labels: list[str]) -> Callable[[Index], Index]:
    def change(index: Index) -> Index:
        require_same_rows(report, index)
        changed = list(index.labels)
        for row, label in zip(chosen.tolist(), labels, strict=True):
            changed[row] = label
        trusted = index.trusted
        if trusted is not None:  # a trusted row is never flagged, so a flip there could not be found
            trusted = trusted.copy()
            trusted[chosen] = False
        return replace(index, labels=changed, trusted=trusted)

    return change


def _measure_planted(before: Report, after: Report, planted: Bools, clean: Bools) -> PlantedEvaluation:
    verdict = after.verdicts
    rows = np.flatnonzero(clean & (verdict != "unreadable"))
    wrong, flagged = planted[rows], verdict[rows] == "corrupted"
    found = detection(flagged, wrong)
    part = after.table.take(pa.array(rows))
    suspects = before.verdicts == "corrupted"
    false_rate = int((flagged & ~wrong).sum()) / max(1, int((~wrong).sum()))
    rate = before.summary.estimated_noise_rate.value or 0.0
    hits = rate * (found.recall or 0.0)
    probabilities = part["corruption_probability"].to_numpy().astype(np.float64)
    return PlantedEvaluation(
        run=str(after.path.parent),
        planted=found.wanted,
        measured=len(rows),
        corrupted=found,
        recall_interval=wilson_interval(found.right, found.wanted),
        precision_interval=wilson_interval(found.right, found.flagged),
        false_alarm_rate=false_rate,
        precision_at_own_rate=hits / (hits + (1 - rate) * false_rate) if hits else None,
        own_rate=rate,
        average_precision=average_precision(-part["rank"].to_numpy().astype(np.float64), wrong),
        calibration=calibration(probabilities, wrong),
        suspects_found_again=int((verdict[suspects] == "corrupted").sum()),
        suspects=int(suspects.sum()),
        lost_classes=[row.label for row in before.summary.classes if row.of and row.rows == row.of],
    )
