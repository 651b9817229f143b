"""The rules of a gate: what was measured, what is allowed, and whether that passes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa

from noisesieve.names import natural_key
from noisesieve.report import Report
from noisesieve.report.summary import wilson_interval
from noisesieve.settings import Limit, Policy


@dataclass(frozen=True)
class Rule:
    """One line of the verdict."""

    name: str
    limit: str
    measured: str
    passed: bool


@dataclass(frozen=True)
class Batch:
    """A scored batch in numbers. Waived rows count as neither right nor wrong."""

    examples: int
    scored: int
    corrupted: int
    waived: int
    unreadable: int
    in_training: int
    unknown: dict[str, int]  # class that the model does not know → rows
    classes: dict[str, tuple[int, int]]  # label → suspects, of


def measure(report: Report) -> Batch:
    """Count a report."""
    table, verdicts = report.table, report.verdicts
    labels = np.array(table["label"].to_pylist(), dtype=object)
    waived = table["waived"].to_numpy(zero_copy_only=False)
    scored = ((verdicts == "clean") | (verdicts == "corrupted")) & ~waived
    suspect = (verdicts == "corrupted") & ~waived
    totals, hits = Counter(labels[scored].tolist()), Counter(labels[suspect].tolist())
    return Batch(
        examples=len(table),
        scored=int(scored.sum()),
        corrupted=int(suspect.sum()),
        waived=int(((verdicts == "corrupted") & waived).sum()),
        unreadable=int((verdicts == "unreadable").sum()),
        in_training=int(table["in_training"].to_numpy(zero_copy_only=False).sum()),
        unknown=dict(
            sorted(Counter(labels[verdicts == "unknown"].tolist()).items(), key=lambda item: natural_key(item[0]))
        ),
        classes={label: (hits[label], totals[label]) for label in sorted(totals, key=natural_key)},
    )


def judge_batch(batch: Batch, policy: Policy) -> list[Rule]:
    """Every rule that the policy sets, in a fixed order."""
    rules = []
    if policy.min_examples is not None:
        enough = batch.scored >= policy.min_examples
        rules.append(Rule("min-examples", f"{policy.min_examples:,}", f"{batch.scored:,} scored", enough))
    if policy.max_corrupted is not None:
        rules.append(
            _share_rule("max-corrupted", policy.max_corrupted, batch.corrupted, batch.scored, policy.confidence)
        )
    if policy.max_class_corrupted is not None:
        rules.append(_class_rule(batch, policy.max_class_corrupted, policy.confidence))
    if policy.max_unreadable is not None:
        rules.append(_share_rule("max-unreadable", policy.max_unreadable, batch.unreadable, batch.examples, None))
    if policy.max_unknown_classes is not None:
        names = ", ".join(f"{label} ({rows})" for label, rows in list(batch.unknown.items())[:5])
        measured = f"{len(batch.unknown):,}" + (f": {names}" if names else "")
        allowed = len(batch.unknown) <= policy.max_unknown_classes
        rules.append(Rule("max-unknown-classes", f"{policy.max_unknown_classes:,}", measured, allowed))
    return rules


def _share_rule(name: str, limit: Limit, hits: int, total: int, confidence: float | None) -> Rule:
    passed, bound = _within(limit, hits, total, confidence)
    share = f"{hits / total:.1%}" if total else "none"
    sure = (
        f", at least {bound:.1%} with {confidence:.0%} confidence"
        if confidence is not None and bound is not None
        else ""
    )
    return Rule(name, limit.text, f"{hits:,} of {total:,} ({share}{sure})", passed)


def _class_rule(batch: Batch, limit: Limit, confidence: float | None) -> Rule:
    """The worst class decides."""
    failing = [
        (hits / max(1, total), label, hits, total)
        for label, (hits, total) in batch.classes.items()
        if not _within(limit, hits, total, confidence)[0]
    ]
    ranked = failing or [(hits / max(1, total), label, hits, total) for label, (hits, total) in batch.classes.items()]
    if not ranked:
        return Rule("max-class-corrupted", limit.text, "no class", True)
    share, label, hits, total = max(ranked)
    more = f", and {len(failing) - 1} more" if len(failing) > 1 else ""
    return Rule("max-class-corrupted", limit.text, f"{label}: {hits:,} of {total:,} ({share:.1%}){more}", not failing)


def _within(limit: Limit, hits: int, total: int, confidence: float | None) -> tuple[bool, float | None]:
    """Does the count keep the limit? With a confidence only a share that is surely above it fails."""
    if not limit.is_share:
        return hits <= limit.value, None
    if total == 0:
        return True, None
    if confidence is None:
        return hits / total <= limit.value, None
    bound = lower_bound(hits, total, confidence)
    return bound <= limit.value, bound


def lower_bound(hits: int, total: int, confidence: float) -> float:
    """Wilson's one-sided lower bound of a share."""
    z = NormalDist().inv_cdf(confidence)
    share, square = hits / total, z * z
    middle = (share + square / (2 * total)) / (1 + square / total)
    reach = z / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return max(0.0, min(share, middle - reach))


def groups(report: Report, column: str) -> list[dict[str, Any]]:
    """Shares by the values of a column, the worst lower bound first: who or what is behind the errors?"""
    table, verdicts = report.table, report.verdicts
    values = _texts(table[column])
    waived = table["waived"].to_numpy(zero_copy_only=False)
    scored = ((verdicts == "clean") | (verdicts == "corrupted")) & ~waived
    names, codes = np.unique(values[scored], return_inverse=True)
    totals = np.bincount(codes, minlength=len(names)).tolist()
    hits = np.bincount(codes, weights=(verdicts[scored] == "corrupted"), minlength=len(names)).astype(int).tolist()
    rows: list[dict[str, Any]] = []
    for name, bad, total in zip(names.tolist(), hits, totals, strict=True):
        low, high = wilson_interval(bad, total)
        rows.append({"value": name, "corrupted": bad, "of": total, "share": bad / total, "low": low, "high": high})
    return sorted(rows, key=lambda row: (-row["low"], -row["share"], natural_key(row["value"])))


def _texts(column: pa.ChunkedArray) -> Any:
    return np.array(["" if value is None else str(value) for value in column.to_pylist()], dtype=str)


def worst(report: Report, most: int) -> Sequence[dict[str, Any]]:
    """The most suspicious rows, for those who list them."""
    columns = ["id", "path", "label", "suggested_label", "corruption_probability", "margin", "source_line", "sha256"]
    found: list[dict[str, Any]] = report.corrupted.select(columns).slice(0, most).to_pylist()
    return found
