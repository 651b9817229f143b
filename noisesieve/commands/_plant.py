"""`noisesieve evaluate --plant`: measure a run without right labels, by flips that are planted for the purpose.

Flips are planted over all rows, with the label pairs of the run's own suspects, and the dataset is scanned again with
the same settings. Recall is the share of the flips that are flagged. Precision is the share of flips among the rows
that are flagged now and were not before: both are counted, and nothing is estimated. They hold for flips that are drawn
from confusions, which are easier to find than human mistakes: only people can tell about those (`review --probe`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from noisesieve import sources
from noisesieve.commands._open_run import is_own_run, require_same_rows, settings_of_run
from noisesieve.commands._own_vectors import OwnVectors, kind_of_vectors, refuse_vectors
from noisesieve.commands.scan import scan
from noisesieve.core.errors import InputError, StateError
from noisesieve.core.files import digest
from noisesieve.core.intervals import wilson_interval
from noisesieve.core.measure_settings import EvaluateSettings
from noisesieve.core.progress import Session
from noisesieve.core.records import Bools, Index, Ints
from noisesieve.core.settings import ScanSettings
from noisesieve.learn.networks.pretrained import weights_file
from noisesieve.report import Report


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
    newly_flagged: int  # rows that were not flagged before, planted ones included
    precision: float | None  # share of planted rows among these; None if there are none
    precision_interval: tuple[float, float]
    suspects_found_again: int
    suspects: int


def evaluate_by_planting(
    report: Report, settings: EvaluateSettings, share: float, session: Session
) -> PlantedEvaluation:
    """Plant flips into `share` of the rows, scan again, and measure."""
    refuse_vectors(report, "evaluate --plant", "predictions")
    scanned, seed = settings_of_run(report, settings.moved), settings.seed
    if not is_own_run(report) and (weights := scanned.training.weights) is not None:
        weights_file(weights, report.summary.training.recipe.backbone, download=False)  # no download
    if kind_of_vectors(report) == "embeddings":
        _require_same_embeddings(report, scanned, session)
    readable = report.verdicts != "unreadable"
    chosen, labels = draw_flips(report, readable, share=share, seed=seed)
    mark = digest({"run": report.facts.settings, "data": report.facts.fingerprint, "rows": "all"})[:8]
    folder = report.path.parent / f"planted-{share:g}-seed-{seed}-{mark}"  # one folder per run that was evaluated
    session.note(f"{len(chosen):,} flips planted into {int(readable.sum()):,} rows; scanning into {folder}.")
    again = scan(
        replace(scanned, output=folder, review=False), session=session, relabel=_relabel(report, chosen, labels)
    )
    assert again is not None  # there is one process
    planted = np.zeros(len(readable), dtype=np.bool_)
    planted[chosen] = True
    return measure_planted(report, again, planted)


def _require_same_embeddings(report: Report, scanned: ScanSettings, session: Session) -> None:
    """Refuse embeddings that are not there any more, or not those that the run was made from."""
    if scanned.embeddings is None:
        raise StateError("The run was scanned from an array of Python.", "Save it, and scan with --embeddings FILE.")
    source = replace(scanned.source, images=False)
    own = OwnVectors.read(replace(scanned, source=source), sources.read(source), session)
    if own is None or own.content() != report.facts.settings["vectors"]["sha256"]:
        raise StateError(f"{scanned.embeddings}: changed since the run.", "Scan again, or put the old file back.")


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


def measure_planted(before: Report, after: Report, planted: Bools) -> PlantedEvaluation:
    """Return recall of the planted rows, and their share among the rows that are flagged now and were not before."""
    verdict, suspects = after.verdicts, before.verdicts == "corrupted"
    flagged, readable = verdict == "corrupted", verdict != "unreadable"
    wanted, found = int((planted & readable).sum()), int((planted & flagged).sum())
    new = flagged & ~suspects
    hits, count = int((new & planted).sum()), int(new.sum())
    return PlantedEvaluation(
        run=str(after.path.parent),
        planted=wanted,
        found=found,
        recall=found / max(1, wanted),
        recall_interval=wilson_interval(found, wanted),
        unplanted=int((~planted & readable).sum()),
        flagged=int((~planted & flagged).sum()),
        newly_flagged=count,
        precision=hits / count if count else None,
        precision_interval=wilson_interval(hits, count),
        suspects_found_again=int((verdict[suspects & ~planted] == "corrupted").sum()),
        suspects=int((suspects & ~planted).sum()),
    )
