"""summary.json: the run in a few numbers, computed from the report's table alone."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from noisesieve.core.records import Bools
from noisesieve.core.summary import (
    ClassRate,
    Confusion,
    Duplicates,
    Estimate,
    Rate,
    Summary,
    TopSuspect,
    TrainingSummary,
    UnreadableRow,
)
from noisesieve.core.text import natural_key
from noisesieve.report.schema import LOW_EVIDENCE

TOP_CONFUSIONS = 20
TOP_SUSPECTS = 10
NAMED = 20
Z95 = 1.959963984540054


def summarize(table: pa.Table, *, classes: list[str], undecided: int, training: TrainingSummary) -> Summary:
    """Return counts, rates with intervals, confusions, duplicates, and the facts of the training."""
    verdict = table["verdict"].cast(pa.string()).to_numpy(zero_copy_only=False)
    paper = table["paper_verdict"].cast(pa.string()).to_numpy(zero_copy_only=False)
    waived = table["waived"].to_numpy(zero_copy_only=False)
    flagged = verdict == "corrupted"
    corrupted = flagged & ~waived
    readable = verdict != "unreadable"
    counts = Counter(verdict.tolist())
    return Summary(
        examples=len(table),
        readable=int(readable.sum()),
        clean=counts["clean"],
        corrupted=int(corrupted.sum()),
        waived=int((flagged & waived).sum()),
        unreadable=counts["unreadable"],
        undecided=undecided,
        paper_corrupted=int((paper == "corrupted").sum()),
        noise_rate=_rate(int(corrupted.sum()), int(readable.sum())),
        estimate=_estimate(table, corrupted),
        classes=_classes(table, classes, corrupted, readable),
        confusions=_confusions(table),
        suspects=_suspects(table),
        unreadable_rows=unreadable_rows(table),
        duplicates=_duplicates(table),
        training=training,
    )


def _estimate(table: pa.Table, corrupted: Bools) -> Estimate:
    probability = table["corruption_probability"].to_numpy(zero_copy_only=False).astype(np.float64)  # null is NaN
    known = ~np.isnan(probability)
    return Estimate(
        noise_rate=float(probability[known].mean()) if known.any() else None,
        wrong_suspects=float(probability[corrupted & known].sum()),
    )


def wilson_interval(hits: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share, which is valid for few rows and for shares near 0 and 1."""
    if total == 0:
        return 0.0, 1.0
    share, square = hits / total, Z95 * Z95
    middle = (share + square / (2 * total)) / (1 + square / total)
    reach = Z95 / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return max(0.0, min(share, middle - reach)), min(1.0, max(share, middle + reach))  # contains share despite rounding


def _rate(hits: int, total: int) -> Rate:
    low, high = wilson_interval(hits, total)
    return Rate(hits, total, hits / total if total else None, low, high)


def _classes(table: pa.Table, classes: list[str], corrupted: Bools, readable: Bools) -> list[ClassRate]:
    codes = pc.index_in(table["label"].combine_chunks(), pa.array(classes)).to_numpy(zero_copy_only=False)
    totals = np.bincount(codes[readable].astype(np.int64), minlength=len(classes)).tolist()
    hits = np.bincount(codes[corrupted].astype(np.int64), minlength=len(classes)).tolist()
    return [
        ClassRate(name, **vars(_rate(hits[i], totals[i])), low_evidence=totals[i] < LOW_EVIDENCE)
        for i, name in enumerate(classes)
    ]


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
