"""summary.json: the run in a few numbers, computed from the report's columns alone."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pyarrow as pa

from noisesieve.core.columns import Hashes, Texts
from noisesieve.core.records import Bools, Floats, Ints, Recalibration
from noisesieve.core.text import natural_key
from noisesieve.report.intervals import noise_rate_interval
from noisesieve.report.report import Report
from noisesieve.report.schema import LOW_EVIDENCE
from noisesieve.report.summary import (
    Budget,
    ClassFlagged,
    Confusion,
    Duplicates,
    Flagged,
    GroupFlagged,
    Groups,
    NoiseRate,
    Summary,
    TopSuspect,
    TrainingSummary,
    UnreadableRow,
)

TOP_CONFUSIONS = 20
TOP_SUSPECTS = 10
NAMED = 20
BUDGETS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)  # rows that a reviewer may look at


def summarize(
    report: Report,
    *,
    undecided: int,
    training: TrainingSummary,
    group_by: str | None = None,
    recalibration: Recalibration | None = None,
) -> Summary:
    """Return counts, the noise rate, classes, confusions, duplicates, and the facts of the training."""
    verdict = report.texts("verdict").codes(["clean", "corrupted", "unreadable"])
    paper = report.texts("paper_verdict").codes(["corrupted"]) == 0
    waived = report.numbers("waived")
    flagged = verdict == 1
    corrupted = flagged & ~waived
    readable = verdict != 2
    rows = _RowCounts(report, corrupted, readable)
    return Summary(
        examples=len(report),
        readable=int(readable.sum()),
        clean=int((verdict == 0).sum()),
        corrupted=int(corrupted.sum()),
        waived=int((flagged & waived).sum()),
        unreadable=int((verdict == 2).sum()),
        undecided=undecided,
        paper_corrupted=int(paper.sum()),
        flagged=Flagged(*rows.total()),
        estimated_noise_rate=_noise_rate(rows),
        budget=_budget(report, rows),
        classes=_classes(report, rows),
        groups=None if group_by is None else _groups(report, group_by, rows),
        confusions=_confusions(report),
        suspects=_suspects(report, corrupted),
        unreadable_rows=unreadable_rows(report),
        duplicates=_duplicates(report),
        training=training,
        recalibration=recalibration,
    )


class _RowCounts:
    """The readable and the flagged rows with their probabilities, for counting them by class or group."""

    def __init__(self, report: Report, flagged: Bools, readable: Bools) -> None:
        self.readable, self.flagged = readable, flagged
        self.trusted: Bools = readable & report.numbers("trusted")
        self.probability: Floats = np.nan_to_num(report.numbers("corruption_probability").astype(np.float64))

    def total(self) -> tuple[int, int, float | None, float]:
        """Return the flagged rows, the readable rows, their share, and how many flagged rows are expected wrong."""
        rows, of = int(self.flagged.sum()), int(self.readable.sum())
        return rows, of, rows / of if of else None, float(self.probability[self.flagged].sum())

    def by(self, codes: Ints, count: int) -> list[tuple[int, int, float | None, float, float]]:
        """Return the same for every code, and the mean probability of all its rows."""
        totals = np.bincount(codes[self.readable], minlength=count)
        rows = np.bincount(codes[self.flagged], minlength=count)
        wrong = np.bincount(codes[self.flagged], weights=self.probability[self.flagged], minlength=count)
        every = np.bincount(codes[self.readable], weights=self.probability[self.readable], minlength=count)
        return [
            (int(rows[i]), int(totals[i]), float(rows[i] / totals[i]) if totals[i] else None, float(wrong[i]), rate)
            for i, rate in enumerate((every / np.maximum(totals, 1)).tolist())
        ]


def _noise_rate(rows: _RowCounts) -> NoiseRate:
    count = int(rows.readable.sum())
    if not count:
        return NoiseRate(None, 0.0, 1.0)
    value = float(rows.probability[rows.readable].mean())
    if not rows.trusted.any():
        return NoiseRate(value, *noise_rate_interval(value, count))
    # Whether a trusted row is wrong is known, so the estimate and its interval are those of the others alone.
    others = rows.readable & ~rows.trusted
    sure, left = float(rows.probability[rows.trusted].sum()), int(others.sum())
    bounds = noise_rate_interval(float(rows.probability[others].mean()), left) if left else (0.0, 0.0)
    low, high = ((sure + bound * left) / count for bound in bounds)
    return NoiseRate(value, low, high)


def _budget(report: Report, rows: _RowCounts) -> list[Budget]:
    """Return what the first rows of the ranking bring, without trusted, waived and decided ones, as on the page."""
    known = report.numbers("waived") | report.column("decided").is_valid().to_numpy() | rows.trusted
    chosen = np.flatnonzero(rows.readable & ~known)
    rank = report.numbers("rank")[chosen]
    along = np.cumsum(rows.probability[chosen[np.argsort(rank)]])
    return [Budget(first, float(along[first - 1])) for first in BUDGETS if first <= len(along)]


def _classes(report: Report, rows: _RowCounts) -> list[ClassFlagged]:
    classes = report.facts.classes
    numbers = np.maximum(report.texts("label").codes(classes), 0)  # -1: a class of unreadable rows
    return [
        ClassFlagged(name, *counts[:4], low_evidence=counts[1] < LOW_EVIDENCE)
        for name, counts in zip(classes, rows.by(numbers, len(classes)), strict=True)
    ]


def _groups(report: Report, column: str, rows: _RowCounts) -> Groups:
    names, codes = code_values(report.column(column))
    values = [
        GroupFlagged(name, *counts) for name, counts in zip(names, rows.by(codes, len(names)), strict=True) if counts[1]
    ]
    return Groups(
        column, sorted(values, key=lambda group: (-group.estimated_noise_rate, -group.of, natural_key(group.value)))
    )


def code_values(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    """Return the distinct values of a column as text, and the number of each row's value. Null is a value too."""
    flat = column.combine_chunks()
    coded = flat if pa.types.is_dictionary(flat.type) else flat.dictionary_encode(null_encoding="encode")
    names = ["(none)" if value is None else str(value) for value in coded.dictionary.to_pylist()]
    codes = coded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False).astype(np.int64)
    return ([*names, "(none)"] if coded.indices.null_count else names), codes


def _confusions(report: Report) -> list[Confusion]:
    suggested = Texts(report.column("suggested_label"), few=True)
    labels = Texts(report.column("label"), few=True)
    rows = np.flatnonzero(~suggested.missing & ~report.numbers("waived"))
    given, to = labels.distinct(), [name for name in suggested.distinct() if name is not None]
    pairs = labels.codes(given)[rows] * max(1, len(to)) + suggested.codes(to)[rows]
    found, counts = np.unique(pairs, return_counts=True)
    names = [(given[pair // len(to)], to[pair % len(to)]) for pair in found.tolist()]
    counted = dict(zip(names, counts.tolist(), strict=True))
    ordered = sorted(counted.items(), key=lambda item: (-item[1], natural_key(item[0][0]), natural_key(item[0][1])))
    return [Confusion(label, other, count) for (label, other), count in ordered[:TOP_CONFUSIONS]]


def _suspects(report: Report, suspect: Bools) -> list[TopSuspect]:
    rows = np.flatnonzero(suspect)
    first = rows[np.argsort(report.numbers("rank")[rows], kind="stable")[:TOP_SUSPECTS]]
    chosen = report.take(first, *(item.name for item in fields(TopSuspect)))
    return [TopSuspect(**row) for row in chosen.to_pylist()]


def unreadable_rows(report: Report) -> list[UnreadableRow]:
    """Return the first rows that cannot be read, each with the reason."""
    rows = np.flatnonzero(report.texts("status").codes(["ok"]) < 0)[:NAMED]
    return [UnreadableRow(**row) for row in report.take(rows, "id", "status").to_pylist()]


def _duplicates(report: Report) -> Duplicates:
    if report.column("sha256").null_count == len(report):
        return Duplicates(0, 0, 0, [])  # predictions
    readable = report.texts("status").codes(["ok"]) == 0  # two empty files are not duplicates
    plain, conflicting = equal_contents(report.hashes, readable, Texts(report.column("label"), few=True))
    shown = [rows[:5] for rows in conflicting[:NAMED]]
    wanted = np.concatenate([*shown, np.zeros(0, dtype=np.int64)])
    entries = iter(report.take(wanted, "id", "label").to_pylist())
    return Duplicates(
        groups=len(plain) + len(conflicting),
        rows=sum(map(len, (*plain, *conflicting))),
        with_different_labels=len(conflicting),
        examples=[[next(entries) for _ in rows] for rows in shown],
    )


def equal_contents(hashes: Hashes, readable: Bools, labels: Texts) -> tuple[list[Ints], list[Ints]]:
    """Return the groups of rows with equal contents under one label, and those under several."""
    codes = np.where(readable, hashes.codes(), -1)
    counts = np.bincount(codes[codes >= 0], minlength=1)
    rows = np.flatnonzero((codes >= 0) & (counts[codes] > 1))
    order = rows[np.argsort(codes[rows], kind="stable")]
    groups = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1) if len(order) else []
    given = labels.codes(labels.distinct())
    plain: list[Ints] = []
    conflicting: list[Ints] = []
    for group in groups:
        (conflicting if (given[group] != given[group[0]]).any() else plain).append(group)
    return plain, conflicting
