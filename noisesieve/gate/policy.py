"""The rules of the gate: what was measured, what is allowed, and whether it passes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from noisesieve.core.options import Limit
from noisesieve.core.text import natural_key
from noisesieve.gate.policy_settings import Policy
from noisesieve.report.intervals import wilson_interval
from noisesieve.report.report import Report
from noisesieve.report.summarize import code_values


@dataclass(frozen=True)
class RuleResult:
    """The result of one rule."""

    name: str
    limit: str
    measured: str
    passed: bool


@dataclass(frozen=True)
class BatchCounts:
    """The counts of a scored batch. Waived rows count as right."""

    examples: int
    scored: int
    flagged: int  # by the verdict
    corrupted: int  # flagged, and probable enough to count (--min-probability)
    waived: int
    unreadable: int
    in_training: int
    unknown: dict[str, int]  # class that the model does not have → rows
    classes: dict[str, tuple[int, int]]  # label → suspects, of


def count_batch(report: Report, min_probability: float) -> BatchCounts:
    """Count the rows of a report; `corrupted` are flagged rows that are wrong with at least this probability."""
    verdicts, waived = report.verdicts, report.numbers("waived")
    labels = report.texts("label")
    names = sorted(labels.distinct(), key=natural_key)
    codes, scored = labels.codes(names), (verdicts == "clean") | (verdicts == "corrupted")
    suspect = report.is_suspect(min_probability)
    totals, hits, unknown = (
        np.bincount(codes[rows], minlength=len(names)).tolist() for rows in (scored, suspect, verdicts == "unknown")
    )
    return BatchCounts(
        examples=len(report),
        scored=int(scored.sum()),
        flagged=int(((verdicts == "corrupted") & ~waived).sum()),
        corrupted=int(suspect.sum()),
        waived=int(((verdicts == "corrupted") & waived).sum()),
        unreadable=int((verdicts == "unreadable").sum()),
        in_training=int(report.numbers("in_training").sum()),
        unknown={label: count for label, count in zip(names, unknown, strict=True) if count},
        classes={label: (hits[code], totals[code]) for code, label in enumerate(names) if totals[code]},
    )


def apply_policy(batch: BatchCounts, policy: Policy) -> list[RuleResult]:
    """Return the result of every rule of the policy, in a fixed order."""
    rules = []
    if policy.min_examples is not None:
        enough = batch.scored >= policy.min_examples
        rules.append(RuleResult("min-examples", f"{policy.min_examples:,}", f"{batch.scored:,} scored", enough))
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
        rules.append(RuleResult("max-unknown-classes", f"{policy.max_unknown_classes:,}", measured, allowed))
    return rules


def _share_rule(name: str, limit: Limit, hits: int, total: int, confidence: float | None) -> RuleResult:
    share = shown_share(hits, total, limit)
    if confidence is None or not limit.is_share or total == 0:
        return RuleResult(name, limit.text, f"{hits:,} of {total:,} ({share})", _within(limit, hits, total))
    bound = f"at least {lower_bound(hits, total, confidence):.1%} with {confidence:.0%} confidence"
    passed = not _significantly_above(limit, hits, total, confidence)
    return RuleResult(name, limit.text, f"{hits:,} of {total:,} ({share}; {bound})", passed)


def _class_rule(batch: BatchCounts, limit: Limit, confidence: float | None) -> RuleResult:
    """The worst class decides. With a confidence, the allowed error is divided by the number of classes."""
    each = None if confidence is None else 1 - (1 - confidence) / max(1, len(batch.classes))

    def fails(hits: int, total: int) -> bool:
        if each is None or not limit.is_share:
            return not _within(limit, hits, total)
        return _significantly_above(limit, hits, total, each)

    ranked = sorted(batch.classes.items(), key=lambda item: -item[1][0] / max(1, item[1][1]))
    failing = [(label, counts) for label, counts in ranked if fails(*counts)]
    if not ranked:
        return RuleResult("max-class-corrupted", limit.text, "no class", True)
    label, (hits, total) = (failing or ranked)[0]
    more = f", and {len(failing) - 1} more" if len(failing) > 1 else ""
    few = "; too few to be sure" if not failing and not _within(limit, hits, total) else ""
    measured = f"{label}: {hits:,} of {total:,} ({shown_share(hits, total, limit)}{few}){more}"
    return RuleResult("max-class-corrupted", limit.text, measured, not failing)


def shown_share(hits: int, total: int, limit: Limit) -> str:
    """Return a share in percent, with more digits if it is close to the limit."""
    if not total:
        return "none"
    near = limit.is_share and abs(hits / total - float(limit.value)) < 0.001
    return f"{hits / total:.3%}" if near else f"{hits / total:.1%}"


def _within(limit: Limit, hits: int, total: int) -> bool:
    return hits <= (limit.value * total if limit.is_share else limit.value)


def _significantly_above(limit: Limit, hits: int, total: int, confidence: float) -> bool:
    """Return True if the share is above the limit by an exact one-sided binomial test."""
    return total > 0 and binomial_tail(hits, total, float(limit.value)) < (1 - confidence) * (1 - 1e-9)


def binomial_tail(hits: int, total: int, share: float) -> float:
    """Return P(X >= hits) of a binomial distribution."""
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
    """Return the one-sided lower bound of Clopper and Pearson for a share."""
    low, high = 0.0, hits / total
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(hits, total, middle) < 1 - confidence else (low, middle)
    return low


@dataclass(frozen=True)
class GroupRate:
    """The suspects among the rows with one value of a column, with Wilson's 95 % interval of their share."""

    value: str
    corrupted: int
    of: int
    share: float
    low: float
    high: float
    expected_wrong: float  # sum of the corruption probabilities of the suspects


@dataclass(frozen=True)
class Suspect:
    """A suspect, as the writers of the gate show it."""

    id: str
    path: str | None
    label: str
    suggested_label: str | None
    corruption_probability: float
    margin: float
    source_line: int | None
    sha256: str


def rates_by_group(report: Report, column: str, min_probability: float) -> list[GroupRate]:
    """Return the rate of suspects by value of a column, such as annotator; the highest lower bound first."""
    verdicts = report.verdicts
    names, codes = code_values(report.column(column))
    scored, suspect = (verdicts == "clean") | (verdicts == "corrupted"), report.is_suspect(min_probability)
    totals = np.bincount(codes[scored], minlength=len(names)).tolist()
    hits = np.bincount(codes[suspect], minlength=len(names)).tolist()
    chances = report.numbers("corruption_probability")
    wrong = np.bincount(codes[suspect], weights=chances[suspect], minlength=len(names)).tolist()
    rows: list[GroupRate] = []
    for name, bad, total, expected in zip(names, hits, totals, wrong, strict=True):
        if not total:
            continue
        low, high = wilson_interval(bad, total)
        rows.append(GroupRate(name, bad, total, bad / total, low, high, expected))
    return sorted(rows, key=lambda row: (-row.low, -row.share, natural_key(row.value)))


def worst_suspects(report: Report, most: int, min_probability: float) -> list[Suspect]:
    """Return the most suspicious rows."""
    columns = [item.name for item in fields(Suspect)]
    rows = report.suspect_rows(min_probability)[:most]
    return [Suspect(**row) for row in report.take(rows, *columns).to_pylist()]
