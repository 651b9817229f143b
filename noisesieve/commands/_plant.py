"""`noisesieve evaluate --plant`: measure a run without right labels, by flips that are planted for the purpose.

Flips are planted over all rows, with the label pairs of the run's own suspects, and the dataset is scanned again with
the same settings. Recall is the share of the flips that are flagged. Precision follows from the noise rate: of all
rows, rate * recall are wrong and flagged, and the share of unplanted rows that are flagged is known. A systematic
mistake of the model looks like label noise to the noise rate, too: only people can tell (`review --probe`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from noisesieve.commands._open_run import require_same_rows, settings_of_run
from noisesieve.commands._own_vectors import kind_of_vectors, refuse_vectors
from noisesieve.commands.scan import scan
from noisesieve.core.errors import InputError, StateError
from noisesieve.core.files import digest
from noisesieve.core.intervals import wilson_interval
from noisesieve.core.measure_settings import EvaluateSettings
from noisesieve.core.progress import Session
from noisesieve.core.records import Bools, Index, Ints
from noisesieve.core.summary import NoiseRate
from noisesieve.decisions.judge import Judgement
from noisesieve.report import Report

# Part of an estimated noise rate's interval that is carried into that of the precision. As many rows are flagged as are
# expected to be wrong, so most of an error in the estimate cancels. (A rate by decisions is carried whole.)
# With this part 18 of 19 sets with known labels were within.
CARRIED = 0.4


@dataclass(frozen=True)
class PlantedEvaluation:
    """A second scan against the flips that were planted for it."""

    run: str
    planted: int
    found: int  # planted rows that are flagged
    recall: float
    recall_interval: tuple[float, float]
    unplanted: int
    flagged: int  # unplanted rows that are flagged
    noise_rate: NoiseRate
    noise_rate_from: str  # estimate or decisions
    precision: float | None  # None if no unplanted row is flagged
    precision_interval: tuple[float, float]
    suspects_found_again: int
    suspects: int


def evaluate_by_planting(
    report: Report, settings: EvaluateSettings, share: float, judgement: Judgement | None, session: Session
) -> PlantedEvaluation:
    """Plant flips into `share` of the rows, scan again, and measure."""
    refuse_vectors(report, "evaluate --plant", "predictions")
    if kind_of_vectors(report) == "embeddings" and settings_of_run(report, settings.moved).embeddings is None:
        raise StateError("The run was scanned from an array of Python.", "Save it, and scan with --embeddings FILE.")
    scanned, seed = settings_of_run(report, settings.moved), settings.seed
    readable = report.verdicts != "unreadable"
    chosen, labels = draw_flips(report, readable, share=share, seed=seed)
    mark = digest({"run": report.facts.settings, "data": report.facts.fingerprint, "rows": "all"})[:8]
    folder = report.path.parent / f"planted-{share:g}-seed-{seed}-{mark}"  # one folder per run that was evaluated
    session.note(f"{len(chosen):,} flips planted into {int(readable.sum()):,} rows; scanning into {folder}.")
    again = scan(
        replace(scanned, output=folder, review=False), session=session, change=_relabel(report, chosen, labels)
    )
    assert again is not None  # there is one process
    planted = np.zeros(len(readable), dtype=np.bool_)
    planted[chosen] = True
    rate, source = report.summary.estimated_noise_rate, "estimate"
    if judgement is not None and judgement.noise_rate is not None:
        found = judgement.noise_rate
        rate, source = NoiseRate(found.value, found.low, found.high), "decisions"
    return measure_planted(report, again, planted, rate, source)


def draw_flips(report: Report, readable: Bools, *, share: float, seed: int) -> tuple[Ints, list[str]]:
    """Choose rows and new labels; pairs are sampled in proportion to their count among suspects, plus one.

    A suspect is never given its suggested label: that might be the right one.
    """
    classes: list[str] = report.facts.classes
    number = {name: i for i, name in enumerate(classes)}
    rows = np.flatnonzero(readable)
    count = round(share * len(rows))
    if count == 0:
        raise InputError(f"{share:.1%} of {len(rows):,} rows is less than one row.", "Plant a larger share.")
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(rows, count, replace=False)).astype(np.int64)
    odds = np.ones((len(classes), len(classes)))  # row: suggested class; column: given class
    suspects = report.corrupted
    for given, suggested in zip(suspects["label"].to_pylist(), suspects["suggested_label"].to_pylist(), strict=True):
        if suggested is not None:
            odds[number[suggested], number[given]] += 1
    np.fill_diagonal(odds, 0.0)
    part = report.table.select(["label", "suggested_label"]).take(pa.array(chosen))
    shown = np.array([number[label] for label in part["label"].to_pylist()], dtype=np.int64)
    own = odds[shown]  # (flips, K)
    if len(classes) > 2:
        for i, suggested in enumerate(part["suggested_label"].to_pylist()):
            if suggested is not None:
                own[i, number[suggested]] = 0.0
    steps = np.cumsum(own / own.sum(axis=1, keepdims=True), axis=1)
    drawn = (steps < rng.random(count)[:, None]).sum(axis=1).clip(max=len(classes) - 1)
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


def measure_planted(before: Report, after: Report, planted: Bools, rate: NoiseRate, source: str) -> PlantedEvaluation:
    """Return recall from the planted rows, and precision from the others and the noise rate."""
    verdict = after.verdicts
    flagged, readable = verdict == "corrupted", verdict != "unreadable"
    suspects = before.verdicts == "corrupted"
    wanted, others = int((planted & readable).sum()), int((~planted & readable).sum())
    found, alarms = int((planted & flagged).sum()), int((~planted & flagged).sum())
    recall = found / max(1, wanted)
    scale = recall * others / alarms if alarms else 0.0
    value, carried = rate.value or 0.0, CARRIED if source == "estimate" else 1.0
    low, high = (min(1.0, scale * (value + carried * (bound - value))) for bound in (rate.low, rate.high))
    return PlantedEvaluation(
        run=str(after.path.parent),
        planted=wanted,
        found=found,
        recall=recall,
        recall_interval=wilson_interval(found, wanted),
        unplanted=others,
        flagged=alarms,
        noise_rate=rate,
        noise_rate_from=source,
        precision=min(1.0, scale * value) if alarms else None,
        precision_interval=(low, high) if alarms else (0.0, 1.0),
        suspects_found_again=int((verdict[suspects & ~planted] == "corrupted").sum()),
        suspects=int((suspects & ~planted).sum()),
    )
