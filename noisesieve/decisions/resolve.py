"""Check decisions against the report: each must identify one row, name a known class, and not contradict another."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from noisesieve.core.columns import Texts
from noisesieve.core.errors import InputError, StateError
from noisesieve.core.text import unguard_cell
from noisesieve.decisions.read import Decision
from noisesieve.report.report import Report

COMPARED_IDS = 20_000  # ids compared with a misspelled one; more would take seconds


@dataclass(frozen=True)
class Outcome:
    """The decision on one row. `label` None: it is left out."""

    row: int
    label: str | None
    decision: str  # accept, keep, relabel, unusable; accept (automatic) or (untouched): not decided by a person
    source: str
    by: str
    at: str
    location: str
    sampled: bool = False  # of the random sample
    how: str = ""  # "sheet 12", if it was decided with others

    @property
    def reason(self) -> str:
        """Who kept the label, and when: the reason of a waiver."""
        return f"kept{f' by {self.by}' if self.by else ''}{f' on {self.at[:10]}' if self.at else ''}"


def resolve(
    report: Report, decisions: Sequence[Decision], *, root: Path, new_classes: bool
) -> tuple[dict[int, Outcome], int]:
    """Return row → outcome, and how many entries of our own exports were not edited.

    Unknown rows, unknown classes, contradictions and stale decisions are refused, and all of them are named.
    """
    known = _RunRows(report, root, decisions)
    unchanged = 0
    invalid: list[str] = []
    stale: list[str] = []
    outcomes: dict[int, Outcome] = {}
    for entry in decisions:
        try:
            outcome = known.outcome(entry, new_classes=new_classes)
        except _StaleDecision as problem:
            stale.append(f"{entry.location}: {problem}")
            continue
        except _InvalidDecision as problem:
            invalid.append(f"{entry.location}: {problem}")
            continue
        if (entry.exported or entry.untouched) and outcome.decision == "keep":
            unchanged += 1
            continue
        earlier = outcomes.setdefault(outcome.row, outcome)
        if earlier.label != outcome.label:
            invalid.append(f"{known.ids[outcome.row]!r}: {_whose(earlier)}, and {_whose(outcome)}")
    if invalid:
        raise InputError(_count(invalid), "Nothing was written: correct them first.", items=invalid)
    if stale:
        raise StateError(_count(stale), "Nothing was written: scan again, and decide these again.", items=stale)
    return outcomes, unchanged


class _InvalidDecision(Exception):
    """A decision that does not fit this run."""


class _StaleDecision(Exception):
    """A decision about an image or a label that has changed."""


class _RunRows:
    """The rows of a run, by id and by path, for checking decisions."""

    def __init__(self, report: Report, root: Path, entries: Sequence[Decision]) -> None:
        self.root = os.path.abspath(root)
        self.ids, paths = report.texts("id"), report.texts("path")
        self.labels = Texts(report.column("label"), few=True)
        self.classes = set(report.facts.classes) | set(self.labels.distinct())
        names = {text for entry in entries for _, name in entry.names for text in self._spellings(name)}
        self.by_id = {str(self.ids[row]): {row} for row in np.flatnonzero(self.ids.is_in(names)).tolist()}
        self.by_path: dict[str, set[int]] = {}
        for row in np.flatnonzero(paths.is_in(names)).tolist():
            self.by_path.setdefault(str(paths[row]), set()).add(row)
        meant = sorted({row for rows in (*self.by_id.values(), *self.by_path.values()) for row in rows})
        facts = report.take(np.array(meant, dtype=np.int64), "sha256", "suggested_label")
        self.hashes = dict(zip(meant, facts["sha256"].to_pylist(), strict=True))
        self.suggested = dict(zip(meant, facts["suggested_label"].to_pylist(), strict=True))

    def outcome(self, entry: Decision, *, new_classes: bool) -> Outcome:
        row = self._row(entry)
        label = self._label(entry)
        if label is not None and label not in self.classes and not new_classes:
            close = difflib.get_close_matches(label.strip().lower(), sorted(self.classes), n=1)
            hint = f"did you mean {close[0]!r}?" if close else "--new-classes allows it"
            raise _InvalidDecision(f"the class {label!r} is not in the run ({hint})")
        if label == "":
            raise _InvalidDecision("the label is empty")
        if entry.sha256 is not None and entry.sha256 != self.hashes[row]:
            raise _StaleDecision(f"{self.ids[row]!r} was another image when this was decided")
        if entry.given is not None and self.labels[row] not in (entry.given, unguard_cell(entry.given)):
            raise _StaleDecision(f"{self.ids[row]!r} was {entry.given!r} then, and is {self.labels[row]!r} in the run")
        word = _word(label, self.labels[row], self.suggested[row])
        if entry.word == "keep" and word != "keep":
            raise _InvalidDecision(f"{self.ids[row]!r} is kept, but labelled {label!r} in the same line")
        word = f"{word} (untouched)" if entry.untouched and word == "accept" else word
        return Outcome(row, label, word, entry.source, entry.by, entry.at, entry.location, entry.sampled, entry.how)

    def _row(self, entry: Decision) -> int:
        """Return the row of a decision. An id identifies one row, a path perhaps several; both must agree."""
        meant: set[int] | None = None
        for kind, name in entry.names:
            rows = self._rows(kind, name, entry.guarded)
            if rows is None:
                close = difflib.get_close_matches(name, self.ids[:COMPARED_IDS], n=1)
                raise _InvalidDecision(
                    f"{name!r} is not in the run" + (f": did you mean {close[0]!r}?" if close else "")
                )
            meant = rows if meant is None else meant & rows
        if not meant:
            raise _InvalidDecision(
                "it identifies no row" if meant is None else "its id and its path are different rows"
            )
        if len(meant) > 1:
            ids = ", ".join(repr(self.ids[row]) for row in sorted(meant)[:3])
            raise _InvalidDecision(f"{entry.names[0][1]!r} is listed more than once: give the id ({ids})")
        return next(iter(meant))

    def _rows(self, kind: str, name: str, guarded: bool) -> set[int] | None:
        tables = (self.by_id,) if kind == "id" else (self.by_path, self.by_id)
        spellings = [unguard_cell(name)] if guarded else self._spellings(name)
        return next((table[text] for text in spellings for table in tables if text in table), None)

    def _spellings(self, name: str) -> list[str]:
        """Return the spellings of a name: as it is, unguarded, and as a path with a leading dot or backslashes."""
        slashed = name.replace("\\", "/")
        inside = os.path.relpath(name, self.root) if os.path.isabs(name) else os.path.normpath(slashed)
        return [name, unguard_cell(name), slashed, inside]

    def _label(self, entry: Decision) -> str | None:
        if entry.label is None or (not entry.guarded and entry.label in self.classes):
            return entry.label
        return unguard_cell(entry.label)


def accept_above(report: Report, min_probability: float, decided: set[int]) -> dict[int, Outcome]:
    """Return the suggestions for undecided suspects whose label is wrong with at least this probability."""
    suspects = report.suspects(min_probability, "row", "suggested_label", "corruption_probability")
    columns = (suspects[name].to_pylist() for name in ("row", "suggested_label", "corruption_probability"))
    source = f"accept-above {min_probability:g}"
    return {
        row: Outcome(row, label, "accept (automatic)", source, "noisesieve", "", "")
        for row, label, probability in zip(*columns, strict=True)
        if label is not None and probability >= min_probability and row not in decided
    }


def decided_before(report: Report, decided: set[int]) -> dict[int, Outcome]:
    """Return the decisions that the run itself was scanned with, except on rows that are decided anew."""
    names = ("row", "decided_label", "decided", "decided_by", "decided_at")
    there = np.flatnonzero(report.column("decided").is_valid().to_numpy())
    rows = report.take(there, *names)
    return {
        row: Outcome(row, label, word, "an earlier decision", by or "", at or "", "the run")
        for row, label, word, by, at in zip(*(rows[name].to_pylist() for name in names), strict=True)
        if row not in decided
    }


def audit_table(report: Report, outcomes: dict[int, Outcome]) -> pa.Table:
    """Return the audit log: one line per decided row, in the order of the dataset."""
    rows = sorted(outcomes)
    kept = [outcomes[row] for row in rows]
    names = ("id", "path", "label", "margin", "corruption_probability", "sha256")
    part = report.take(np.array(rows, dtype=np.int64), *names)
    return pa.table(
        {
            "id": part["id"],
            "path": part["path"],
            "decision": [outcome.decision for outcome in kept],
            "old_label": part["label"],
            "new_label": pa.array([outcome.label for outcome in kept], pa.string()),
            "margin": part["margin"],
            "corruption_probability": part["corruption_probability"],
            "source": [outcome.source for outcome in kept],
            "by": [outcome.by for outcome in kept],
            "decided_at": [outcome.at for outcome in kept],
            "place": [outcome.location for outcome in kept],
            "how": [outcome.how for outcome in kept],
            "sha256": part["sha256"],
        }
    )


def _count(problems: list[str]) -> str:
    return f"{len(problems):,} decision{'s' if len(problems) > 1 else ''} cannot be applied:"


def _word(label: str | None, given: str, suggested: str | None) -> str:
    if label is None:
        return "unusable"
    if label == given:
        return "keep"
    return "accept" if label == suggested else "relabel"


def _whose(outcome: Outcome) -> str:
    by = f" by {outcome.by}" if outcome.by else ""
    return f"{_shown(outcome.label)}{by} in {outcome.location}"


def _shown(label: str | None) -> str:
    return "unusable" if label is None else repr(label)
