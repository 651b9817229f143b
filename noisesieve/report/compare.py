"""Compare two reports of one dataset: which suspects are new, fixed, or still there."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, replace

from noisesieve.core.text import natural_key
from noisesieve.report.report import Report
from noisesieve.report.run import method_of

KINDS = ("new", "fixed", "decided", "cleared", "waived", "gone", "persistent")


@dataclass(frozen=True)
class ComparedRow:
    """What is compared of one row of a report."""

    row: int
    id: str | None  # None: a row number, which changes when an earlier row is removed
    path: str | None
    sha256: str | None
    label: str
    suggested_label: str | None
    corruption_probability: float | None
    waived: bool
    suspect: bool
    scored: bool
    decided: bool


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
    old, new = _rows(before), _rows(after)
    new_row_of = _match(old, new)
    backwards = {b: a for a, b in new_row_of.items()}
    suspects: dict[str, list[ChangedSuspect]] = {kind: [] for kind in KINDS}
    for i, row in enumerate(old):
        if row.suspect:
            now = new[new_row_of[i]] if i in new_row_of else None
            suspects[_kind_of_change(row, now)].append(_entry(row, now))
    for i, row in enumerate(new):
        if row.suspect:
            then = old[backwards[i]] if i in backwards else None
            if then is None or not then.suspect:
                suspects["new"].append(_entry(then, row))
    return RunComparison(
        before=ComparedRun(_path(before), len(old), sum(row.suspect for row in old), method_of(before.facts.settings)),
        after=ComparedRun(_path(after), len(new), sum(row.suspect for row in new), method_of(after.facts.settings)),
        matched=len(new_row_of),
        relabelled=sum(old[a].label != new[b].label for a, b in new_row_of.items()),
        counts={kind: len(rows) for kind, rows in suspects.items()},
        suspects=suspects,
        classes=_classes(old, new),
    )


def _path(report: Report) -> str:
    return str(report.path.parent if report.path.name == "report.parquet" else report.path)


def _rows(report: Report) -> list[ComparedRow]:
    names = ["row", "id", "path", "sha256", "label", "suggested_label", "corruption_probability", "waived"]
    flags = (report.verdicts == "corrupted") & ~report.table["waived"].to_numpy(zero_copy_only=False)
    scored = (report.verdicts == "corrupted") | (report.verdicts == "clean")
    columns = [report.table[name].to_pylist() for name in names]
    decided = report.table["decided"].is_valid().to_pylist()
    rows = [ComparedRow(*values) for values in zip(*columns, flags.tolist(), scored.tolist(), decided, strict=True)]
    # A row number says nothing where content does.
    numbered = [row.path is None and row.id == str(row.row) and row.sha256 is not None for row in rows]
    return [replace(row, id=None) if is_number else row for row, is_number in zip(rows, numbered, strict=True)]


def _match(old: list[ComparedRow], new: list[ComparedRow]) -> dict[int, int]:
    """Return row of the old report → row of the new one: the same id, else the same path, else the same content.

    Of several rows with the same content, those with the same label are matched first.
    """
    new_row_of: dict[int, int] = {}
    taken: set[int] = set()
    for key in ("id", "path"):
        name_of = operator.attrgetter(key)
        row_of = {name_of(row): i for i, row in enumerate(new) if name_of(row) is not None and i not in taken}
        for i, row in enumerate(old):
            j = row_of.get(name_of(row)) if i not in new_row_of and name_of(row) is not None else None
            if j is not None and j not in taken:
                new_row_of[i] = j
                taken.add(j)
    for keys in (("sha256", "label"), ("sha256",)):
        content_of = operator.attrgetter(*keys)
        free: dict[object, list[int]] = {}
        for j, row in enumerate(new):
            if j not in taken and row.sha256 is not None:
                free.setdefault(content_of(row), []).append(j)
        for i, row in enumerate(old):
            if i not in new_row_of and (candidates := free.get(content_of(row))):
                new_row_of[i] = candidates.pop(0)
                taken.add(new_row_of[i])
    return new_row_of


def _kind_of_change(then: ComparedRow, now: ComparedRow | None) -> str:
    if now is None or not now.scored:
        return "gone"
    if now.suspect:
        return "persistent"
    if now.waived:
        return "waived"
    if now.label != then.label:
        return "fixed"
    return "decided" if now.decided else "cleared"


def _entry(then: ComparedRow | None, now: ComparedRow | None) -> ChangedSuspect:
    row = now or then
    assert row is not None
    return ChangedSuspect(
        id=row.id or str(row.row),
        before=None if then is None else then.label,
        after=None if now is None else now.label,
        suggested_label=row.suggested_label,
        corruption_probability=row.corruption_probability,
    )


def _classes(old: list[ComparedRow], new: list[ComparedRow]) -> list[ComparedClass]:
    def counted(rows: list[ComparedRow]) -> tuple[Counter[str], Counter[str]]:
        totals = Counter(row.label for row in rows if row.scored)
        return Counter(row.label for row in rows if row.suspect), totals

    (old_hits, old_totals), (new_hits, new_totals) = counted(old), counted(new)
    return [
        ComparedClass(
            label,
            before=SuspectCount(old_hits[label], old_totals[label]),
            after=SuspectCount(new_hits[label], new_totals[label]),
        )
        for label in sorted(old_totals.keys() | new_totals.keys(), key=natural_key)
    ]
