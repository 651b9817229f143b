"""Compare two reports of one dataset: which suspects are new, fixed, or still there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from noisesieve.core.columns import Texts
from noisesieve.core.files import Json
from noisesieve.core.records import Bools, Ints
from noisesieve.core.text import natural_key
from noisesieve.report.report import Report
from noisesieve.report.run import method_of

KINDS = ("new", "fixed", "decided", "cleared", "waived", "gone", "persistent")


@dataclass(frozen=True)
class ComparedRun:
    """One of the two runs."""

    run: str
    examples: int
    suspects: int
    method: int  # that decided; runs of different methods differ without any change of the data


@dataclass(frozen=True)
class ChangedSuspect:
    """A suspect of one of the runs, with its label in both; None if the row is missing there."""

    id: str
    before: str | None
    after: str | None
    suggested_label: str | None
    corruption_probability: float | None


@dataclass(frozen=True)
class SuspectCount:
    """Suspects out of the scored rows of a class."""

    corrupted: int
    of: int


@dataclass(frozen=True)
class ComparedClass:
    """The suspects of one class in both runs."""

    label: str
    before: SuspectCount
    after: SuspectCount


@dataclass(frozen=True)
class RunComparison:
    """The suspects of two runs of one dataset, by kind of change."""

    before: ComparedRun
    after: ComparedRun
    matched: int
    relabelled: int
    counts: dict[str, int]
    suspects: dict[str, list[ChangedSuspect]]
    classes: list[ComparedClass]


def compare(before: Report, after: Report) -> RunComparison:
    """Match rows by id and path, else by content, and group the suspects of both reports.

    new: a suspect only in the later report. fixed: its label changed and it is no suspect any more. decided: the same
    label in the dataset, and a person has decided since. cleared: the same label, but no suspect any more. waived:
    reviewed, the label is right. gone: the row is missing or unreadable. persistent: a suspect in both.
    """
    old, new = _ReportRows(before), _ReportRows(after)
    to_new = _match(old, new)
    to_old = np.full(len(after), -1, dtype=np.int64)
    matched = np.flatnonzero(to_new >= 0)
    to_old[to_new[matched]] = matched
    names = sorted({*old.labels.distinct(), *new.labels.distinct()}, key=natural_key)
    old_codes, new_codes = old.labels.codes(names), new.labels.codes(names)
    suspects: dict[str, list[ChangedSuspect]] = {kind: [] for kind in KINDS}
    was = np.flatnonzero(old.suspect)
    now = to_new[was]
    for row, other in zip(old.entries(was), new.entries(now), strict=True):
        suspects[_kind_of_change(row, other)].append(_entry(row, other))
    found = np.flatnonzero(new.suspect & ~np.where(to_old >= 0, old.suspect[to_old], False))
    for row, other in zip(new.entries(found), old.entries(to_old[found]), strict=True):
        suspects["new"].append(_entry(other, row))
    return RunComparison(
        before=ComparedRun(_path(before), len(before), int(old.suspect.sum()), method_of(before.facts.settings)),
        after=ComparedRun(_path(after), len(after), int(new.suspect.sum()), method_of(after.facts.settings)),
        matched=len(matched),
        relabelled=int((old_codes[matched] != new_codes[to_new[matched]]).sum()),
        counts={kind: len(rows) for kind, rows in suspects.items()},
        suspects=suspects,
        classes=_classes(names, (old, old_codes), (new, new_codes)),
    )


def _path(report: Report) -> str:
    return str(report.path.parent if report.path.name == "report.parquet" else report.path)


class _ReportRows:
    """What is compared of the rows of a report, as columns."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.labels = Texts(report.column("label"), few=True)
        self.suspect = report.is_suspect(0.0)
        self.scored: Bools = (report.verdicts == "corrupted") | (report.verdicts == "clean")

    def key(self, name: str) -> pa.Array:
        """Return the values of a column that rows are matched by. A row number says nothing where content does."""
        values = self._report.texts(name).array
        if name != "id":
            return values
        numbers = pa.array(np.arange(len(values))).cast(pa.large_string())
        content, place = self._report.column("sha256").combine_chunks(), self._report.column("path").combine_chunks()
        says_nothing = pc.and_(pc.equal(values, numbers), pc.and_(place.is_null(), content.is_valid()))
        return pc.if_else(says_nothing, None, values)

    def entries(self, rows: Ints) -> Iterator[Json | None]:
        """Yield some rows, None for -1."""
        columns = ("row", "id", "label", "suggested_label", "corruption_probability", "waived", "decided")
        there = rows[rows >= 0]
        known = iter(self._report.take(there, *columns).to_pylist())
        flags = zip(self.suspect[there].tolist(), self.scored[there].tolist(), strict=True)
        for row in rows.tolist():
            if row < 0:
                yield None
            else:
                suspect, scored = next(flags)
                yield {**next(known), "suspect": suspect, "scored": scored}


def _match(old: _ReportRows, new: _ReportRows) -> Ints:
    """Return for each old row the new one, or -1: the same id, else the same path, else the same content.

    Of several rows with the same content, those with the same label are matched first.
    """
    if old.key("id").null_count == 0 and old.key("id").equals(new.key("id")):  # as for two runs of one dataset
        return np.arange(len(old.suspect))
    to_new = np.full(len(old.suspect), -1, dtype=np.int64)
    taken = np.zeros(len(new.suspect), dtype=np.bool_)
    for name, with_label in (("id", False), ("path", False), ("sha256", True), ("sha256", False)):
        left, free = np.flatnonzero(to_new < 0), np.flatnonzero(~taken)
        if not len(left) or not len(free):
            break
        keys = [rows.key(name).take(pa.array(part)) for rows, part in ((old, left), (new, free))]
        codes = _codes(pa.concat_arrays(keys))
        if with_label:
            labels = [rows.labels.take(part).array.cast(pa.large_string()) for rows, part in ((old, left), (new, free))]
            both = _codes(pa.concat_arrays(labels))
            codes = np.where(codes >= 0, codes * (both.max() + 1) + both, -1)
        pairs = _pair(codes[: len(left)], codes[len(left) :])
        to_new[left[pairs[0]]] = free[pairs[1]]
        taken[free[pairs[1]]] = True
    return to_new


def _codes(values: pa.Array) -> Ints:
    coded = values.dictionary_encode()
    return np.asarray(coded.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _pair(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Return positions of equal codes in both: the first of a code with the first, the second with the second."""
    keys = []
    for codes in (left, right):
        known = np.flatnonzero(codes >= 0)
        order = known[np.argsort(codes[known], kind="stable")]
        begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
        counted = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
        keys.append((order, codes[order], counted))
    most = max((int(part[2].max(initial=0)) for part in keys), default=0) + 1
    (own, a, i), (other, b, j) = keys
    _, mine, theirs = np.intersect1d(a * most + i, b * most + j, assume_unique=True, return_indices=True)
    return own[mine], other[theirs]


def _kind_of_change(then: Json | None, now: Json | None) -> str:
    assert then is not None
    if now is None or not now["scored"]:
        return "gone"
    if now["suspect"]:
        return "persistent"
    if now["waived"]:
        return "waived"
    if now["label"] != then["label"]:
        return "fixed"
    return "decided" if now["decided"] is not None else "cleared"


def _entry(then: Json | None, now: Json | None) -> ChangedSuspect:
    row = now or then
    assert row is not None
    return ChangedSuspect(
        id=row["id"],
        before=None if then is None else then["label"],
        after=None if now is None else now["label"],
        suggested_label=row["suggested_label"],
        corruption_probability=row["corruption_probability"],
    )


def _classes(
    names: list[str], before: tuple[_ReportRows, Ints], after: tuple[_ReportRows, Ints]
) -> list[ComparedClass]:
    counted = [
        (
            np.bincount(codes[rows.suspect], minlength=len(names)).tolist(),
            np.bincount(codes[rows.scored], minlength=len(names)).tolist(),
        )
        for rows, codes in (before, after)
    ]
    (old_hits, old_totals), (new_hits, new_totals) = counted
    return [
        ComparedClass(
            label,
            before=SuspectCount(old_hits[code], old_totals[code]),
            after=SuspectCount(new_hits[code], new_totals[code]),
        )
        for code, label in enumerate(names)
        if old_totals[code] or new_totals[code]
    ]
