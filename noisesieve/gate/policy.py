"""The rules of a gate: what was measured, what is allowed, and whether that passes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from noisesieve.names import natural_key
from noisesieve.records import Ints
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
    """A scored batch in numbers. A waived row was reviewed, and counts as right."""

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
    scored = (verdicts == "clean") | (verdicts == "corrupted")
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
    share = shown_share(hits, total, limit)
    if confidence is None or not limit.is_share or total == 0:
        return Rule(name, limit.text, f"{hits:,} of {total:,} ({share})", _within(limit, hits, total))
    sure = f"at least {lower_bound(hits, total, confidence):.1%} with {confidence:.0%} confidence"
    passed = not _surely_above(limit, hits, total, confidence)
    return Rule(name, limit.text, f"{hits:,} of {total:,} ({share}; {sure})", passed)


def _class_rule(batch: Batch, limit: Limit, confidence: float | None) -> Rule:
    """The worst class decides. With a confidence, the chance of a false alarm is shared among all of them."""
    each = None if confidence is None else 1 - (1 - confidence) / max(1, len(batch.classes))

    def fails(hits: int, total: int) -> bool:
        if each is None or not limit.is_share:
            return not _within(limit, hits, total)
        return _surely_above(limit, hits, total, each)

    ranked = sorted(batch.classes.items(), key=lambda item: -item[1][0] / max(1, item[1][1]))
    failing = [(label, counts) for label, counts in ranked if fails(*counts)]
    if not ranked:
        return Rule("max-class-corrupted", limit.text, "no class", True)
    label, (hits, total) = (failing or ranked)[0]
    more = f", and {len(failing) - 1} more" if len(failing) > 1 else ""
    few = "; too few to be sure" if not failing and not _within(limit, hits, total) else ""
    measured = f"{label}: {hits:,} of {total:,} ({shown_share(hits, total, limit)}{few}){more}"
    return Rule("max-class-corrupted", limit.text, measured, not failing)


def shown_share(hits: int, total: int, limit: Limit) -> str:
    """A share in percent, with more digits where it lies near the limit."""
    if not total:
        return "none"
    near = limit.is_share and abs(hits / total - float(limit.value)) < 0.001
    return f"{hits / total:.3%}" if near else f"{hits / total:.1%}"


def _within(limit: Limit, hits: int, total: int) -> bool:
    return hits <= (limit.value * total if limit.is_share else limit.value)


def _surely_above(limit: Limit, hits: int, total: int, confidence: float) -> bool:
    """Would so many suspects be that unlikely if the share were just at the limit? Exact, for small batches too."""
    return total > 0 and binomial_tail(hits, total, float(limit.value)) < (1 - confidence) * (1 - 1e-9)


def binomial_tail(hits: int, total: int, share: float) -> float:
    """P(X >= hits) of a binomial distribution."""
    if hits <= 0 or share >= 1:
        return 1.0
    if share <= 0 or hits > total:
        return 0.0
    below = hits <= share * total  # sum the shorter side
    step, i, tail = (-1, hits - 1, 0.0) if below else (1, hits, 0.0)
    while 0 <= i <= total:
        ways = math.lgamma(total + 1) - math.lgamma(i + 1) - math.lgamma(total - i + 1)
        term = math.exp(ways + i * math.log(share) + (total - i) * math.log(1 - share))
        tail += term
        if term < 1e-17 * tail:
            break
        i += step
    return min(1.0, max(0.0, 1 - tail if below else tail))


def lower_bound(hits: int, total: int, confidence: float) -> float:
    """The smallest share that so many hits are still compatible with: Clopper and Pearson's, one-sided."""
    low, high = 0.0, hits / total
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(hits, total, middle) < 1 - confidence else (low, middle)
    return low


def groups(report: Report, column: str) -> list[dict[str, Any]]:
    """Shares by the values of a column, the worst lower bound first: who or what is behind the errors?"""
    table, verdicts = report.table, report.verdicts
    names, codes = _coded(table[column])
    waived = table["waived"].to_numpy(zero_copy_only=False)
    scored = (verdicts == "clean") | (verdicts == "corrupted")
    suspect = (verdicts == "corrupted") & ~waived
    totals = np.bincount(codes[scored], minlength=len(names)).tolist()
    hits = np.bincount(codes[suspect], minlength=len(names)).tolist()
    rows: list[dict[str, Any]] = []
    for name, bad, total in zip(names, hits, totals, strict=True):
        if not total:
            continue
        low, high = wilson_interval(bad, total)
        rows.append({"value": name, "corrupted": bad, "of": total, "share": bad / total, "low": low, "high": high})
    return sorted(rows, key=lambda row: (-row["low"], -row["share"], natural_key(row["value"])))


def _coded(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    """The values of a column as text, and every row's number among them; a missing value is a value."""
    flat = column.combine_chunks()
    coded = flat if pa.types.is_dictionary(flat.type) else flat.dictionary_encode(null_encoding="encode")
    names = ["(none)" if value is None else str(value) for value in coded.dictionary.to_pylist()]
    codes = coded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False).astype(np.int64)
    return ([*names, "(none)"] if coded.indices.null_count else names), codes


def worst(report: Report, most: int) -> Sequence[dict[str, Any]]:
    """The most suspicious rows, for those who list them."""
    columns = ["id", "path", "label", "suggested_label", "corruption_probability", "margin", "source_line", "sha256"]
    found: list[dict[str, Any]] = report.corrupted.select(columns).slice(0, most).to_pylist()
    return found
