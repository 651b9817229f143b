"""summary.json: the run in a few numbers, computed from the report's table alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from noisesieve.core.records import Bools, Floats, Ints, Recalibration
from noisesieve.core.text import natural_key
from noisesieve.report.intervals import noise_rate_interval
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
    table: pa.Table,
    *,
    classes: list[str],
    undecided: int,
    training: TrainingSummary,
    group_by: str | None = None,
    recalibration: Recalibration | None = None,
) -> Summary:
    """Return counts, the noise rate, classes, confusions, duplicates, and the facts of the training."""
    verdict = table["verdict"].cast(pa.string()).to_numpy(zero_copy_only=False)
    paper = table["paper_verdict"].cast(pa.string()).to_numpy(zero_copy_only=False)
    waived = table["waived"].to_numpy(zero_copy_only=False)
    flagged = verdict == "corrupted"
    corrupted = flagged & ~waived
    readable = verdict != "unreadable"
    counts = Counter(verdict.tolist())
    rows = _RowCounts(table, corrupted, readable)
    return Summary(
        examples=len(table),
        readable=int(readable.sum()),
        clean=counts["clean"],
        corrupted=int(corrupted.sum()),
        waived=int((flagged & waived).sum()),
        unreadable=counts["unreadable"],
        undecided=undecided,
        paper_corrupted=int((paper == "corrupted").sum()),
        flagged=Flagged(*rows.total()),
        estimated_noise_rate=_noise_rate(rows),
        budget=_budget(table, rows),
        classes=_classes(table, classes, rows),
        groups=None if group_by is None else _groups(table, group_by, rows),
        confusions=_confusions(table),
        suspects=_suspects(table),
        unreadable_rows=unreadable_rows(table),
        duplicates=_duplicates(table),
        training=training,
        recalibration=recalibration,
    )


class _RowCounts:
    """The readable and the flagged rows with their probabilities, for counting them by class or group."""

    def __init__(self, table: pa.Table, flagged: Bools, readable: Bools) -> None:
        probability = table["corruption_probability"].to_numpy(zero_copy_only=False).astype(np.float64)  # null is NaN
        self.readable, self.flagged = readable, flagged
        self.trusted: Bools = readable & table["trusted"].to_numpy(zero_copy_only=False)
        self.probability: Floats = np.nan_to_num(probability)

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


def _budget(table: pa.Table, rows: _RowCounts) -> list[Budget]:
    """Return what the first rows of the ranking bring, without trusted, waived and decided ones, as on the page."""
    known = table["waived"].to_numpy(zero_copy_only=False) | table["decided"].is_valid().to_numpy() | rows.trusted
    chosen = np.flatnonzero(rows.readable & ~known)
    rank = table["rank"].to_numpy(zero_copy_only=False)[chosen]
    along = np.cumsum(rows.probability[chosen[np.argsort(rank)]])
    return [Budget(first, float(along[first - 1])) for first in BUDGETS if first <= len(along)]


def _classes(table: pa.Table, classes: list[str], rows: _RowCounts) -> list[ClassFlagged]:
    codes = pc.index_in(table["label"].combine_chunks(), pa.array(classes))
    numbers = codes.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)  # null: a class of unreadable rows
    return [
        ClassFlagged(name, *counts[:4], low_evidence=counts[1] < LOW_EVIDENCE)
        for name, counts in zip(classes, rows.by(numbers, len(classes)), strict=True)
    ]


def _groups(table: pa.Table, column: str, rows: _RowCounts) -> Groups:
    names, codes = code_values(table[column])
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


def _confusions(table: pa.Table) -> list[Confusion]:
    suspect = pc.and_(pc.is_valid(table["suggested_label"]), pc.invert(table["waived"]))
    pairs = table.select(["label", "suggested_label"]).filter(suspect)
    counted = Counter(zip(pairs["label"].to_pylist(), pairs["suggested_label"].to_pylist(), strict=True))
    ordered = sorted(counted.items(), key=lambda item: (-item[1], natural_key(item[0][0]), natural_key(item[0][1])))
    return [Confusion(given, to, count) for (given, to), count in ordered[:TOP_CONFUSIONS]]


def _suspects(table: pa.Table) -> list[TopSuspect]:
    suspect = pc.and_(pc.equal(table["verdict"].cast(pa.string()), "corrupted"), pc.invert(table["waived"]))
    chosen = table.filter(suspect).sort_by("rank")
    columns = [item.name for item in fields(TopSuspect)]
    return [TopSuspect(**row) for row in chosen.select(columns).slice(0, TOP_SUSPECTS).to_pylist()]


def unreadable_rows(table: pa.Table) -> list[UnreadableRow]:
    """Return the first rows that cannot be read, each with the reason."""
    chosen = table.filter(pc.not_equal(table["status"], "ok"))
    return [UnreadableRow(**row) for row in chosen.select(["id", "status"]).slice(0, NAMED).to_pylist()]


def _duplicates(table: pa.Table) -> Duplicates:
    sha256 = table["sha256"].to_numpy(zero_copy_only=False)
    readable = table["status"].to_numpy(zero_copy_only=False) == "ok"  # two empty files are not duplicates
    known = np.flatnonzero([value is not None and ok for value, ok in zip(sha256, readable, strict=True)])
    groups: dict[str, list[int]] = {}
    for row in known.tolist():
        groups.setdefault(sha256[row], []).append(row)
    several = [rows for rows in groups.values() if len(rows) > 1]
    label, ids = table["label"].to_pylist(), table["id"].to_pylist()
    conflicting = [rows for rows in several if len({label[row] for row in rows}) > 1]
    return Duplicates(
        groups=len(several),
        rows=sum(len(rows) for rows in several),
        with_different_labels=len(conflicting),
        examples=[[{"id": ids[row], "label": label[row]} for row in rows[:5]] for rows in conflicting[:NAMED]],
    )
