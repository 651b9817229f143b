"""`evaluate --plant`: precision and recall on a dataset whose truth nobody knows.

Known flips go into rows that the run called clean, drawn as the run's own suspects are distributed; the same settings
scan once more; what became of the flips is the answer. It is an estimate: rows that the first scan flagged take no
part (some of them are its false alarms), and wrong labels that it missed count as false alarms when the second finds
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from noisesieve.bench.measure import average_precision, calibration, detection
from noisesieve.errors import InputError
from noisesieve.files import digest
from noisesieve.pipeline import scan
from noisesieve.records import Bools, Index, Ints
from noisesieve.reopen import same_rows, settings_of
from noisesieve.report import Report
from noisesieve.report.summary import wilson_interval
from noisesieve.watch import Stop, Watcher


def plant_and_rescan(
    report: Report,
    *,
    share: float,
    seed: int,
    data: Path | None,
    root: Path | None,
    watcher: Watcher,
    stop: Stop,
) -> dict[str, Any]:
    """Plant flips into `share` of the clean rows, scan again, and measure on the rows that were clean before."""
    settings = settings_of(report, data, root)
    clean = report.verdicts == "clean"
    chosen, labels = draw_flips(report, clean, share=share, seed=seed)
    mark = digest({"run": report.facts["settings"], "data": report.facts["fingerprint"]})[:8]
    folder = report.path.parent / f"planted-{share:g}-seed-{seed}-{mark}"  # another run's flips are not ours
    watcher.note(f"{len(chosen):,} flips planted into {int(clean.sum()):,} clean rows; scanning into {folder}.")
    again = scan(
        replace(settings, output=folder, review=False),
        watcher=watcher,
        stop=stop,
        change=_relabel(report, chosen, labels),
    )
    planted = np.zeros(len(clean), dtype=np.bool_)
    planted[chosen] = True
    return _measure(report, again, planted, clean)


def draw_flips(report: Report, clean: Bools, *, share: float, seed: int) -> tuple[Ints, list[str]]:
    """Which clean rows to flip, and their new labels: drawn like the suspects, every other class having a chance."""
    classes: list[str] = report.facts["classes"]
    number = {name: i for i, name in enumerate(classes)}
    rows = np.flatnonzero(clean)
    count = round(share * len(rows))
    if count == 0:
        raise InputError(f"{share:.1%} of {len(rows):,} clean rows is not one row.", "Plant a larger share.")
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(rows, count, replace=False)).astype(np.int64)
    odds = np.ones((len(classes), len(classes)))  # row: what a picture shows; column: what it is called
    suspects = report.corrupted
    for given, looks_like in zip(suspects["label"].to_pylist(), suspects["suggested_label"].to_pylist(), strict=True):
        if looks_like is not None:
            odds[number[looks_like], number[given]] += 1
    np.fill_diagonal(odds, 0.0)
    steps = np.cumsum(odds / odds.sum(axis=1, keepdims=True), axis=1)
    given = report.table["label"].take(pa.array(chosen)).to_pylist()
    shown = np.array([number[label] for label in given], dtype=np.int64)
    drawn = (steps[shown] < rng.random(count)[:, None]).sum(axis=1).clip(max=len(classes) - 1)
    return chosen, [classes[i] for i in drawn.tolist()]


def _relabel(report: Report, chosen: Ints, labels: list[str]) -> Callable[[Index], Index]:
    def change(index: Index) -> Index:
        same_rows(report, index)
        changed = list(index.labels)
        for row, label in zip(chosen.tolist(), labels, strict=True):
            changed[row] = label
        trusted = index.trusted
        if trusted is not None:  # a row that is trusted by decree could never be found
            trusted = trusted.copy()
            trusted[chosen] = False
        return replace(index, labels=changed, trusted=trusted)

    return change


def _measure(before: Report, after: Report, planted: Bools, clean: Bools) -> dict[str, Any]:
    verdict = after.verdicts
    rows = np.flatnonzero(clean & (verdict != "unreadable"))
    truth, flagged = planted[rows], verdict[rows] == "corrupted"
    found = detection(flagged, truth)
    part = after.table.take(pa.array(rows))
    suspects = before.verdicts == "corrupted"
    alarms = int((flagged & ~truth).sum())
    false_rate = alarms / max(1, int((~truth).sum()))
    rate = before.summary["estimate"]["noise_rate"]
    lost = [row["label"] for row in before.summary["classes"] if row["of"] and row["corrupted"] == row["of"]]
    hits = rate * (found.recall or 0.0)
    return {
        "run": str(after.path.parent),
        "planted": found.wanted,
        "measured": len(rows),
        "corrupted": asdict(found),
        "recall_interval": list(wilson_interval(found.right, found.wanted)),
        "precision_interval": list(wilson_interval(found.right, found.flagged)),
        "false_alarm_rate": false_rate,
        "precision_at_own_rate": hits / (hits + (1 - rate) * false_rate) if hits else None,
        "own_rate": rate,
        "average_precision": average_precision(-part["rank"].to_numpy().astype(np.float64), truth),
        "calibration": asdict(calibration(part["corruption_probability"].to_numpy().astype(np.float64), truth)),
        "suspects_found_again": int((verdict[suspects] == "corrupted").sum()),
        "suspects": int(suspects.sum()),
        "lost_classes": lost,  # flips into them are found without looking: the figures say nothing
    }
