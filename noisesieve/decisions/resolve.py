"""Decisions against the report: each must mean one row, name a known class, contradict no other, and still hold."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from noisesieve.decisions.read import Decision
from noisesieve.errors import InputError, StateError
from noisesieve.names import unguard_cell
from noisesieve.report import Report

COMPARED_IDS = 20_000  # with a typo; more would take seconds


@dataclass(frozen=True)
class Outcome:
    """What becomes of one row. `label` None: it is left out."""

    row: int
    label: str | None
    decision: str  # accept, keep, relabel, unusable; accept (automatic) or (untouched): nobody has touched it
    source: str
    by: str
    at: str
    place: str


def resolve(
    report: Report, decisions: Sequence[Decision], *, root: Path, new_classes: bool
) -> tuple[dict[int, Outcome], int]:
    """Row → outcome, and how many entries decide nothing.

    Unknown rows and classes, contradictions and stale decisions are all named, and refused.
    """
    known = _Known(report, root)
    silent = 0
    wrong: list[str] = []
    stale: list[str] = []
    outcomes: dict[int, Outcome] = {}
    for said in decisions:
        try:
            outcome = known.outcome(said, new_classes=new_classes)
        except _Stale as problem:
            stale.append(f"{said.place}: {problem}")
            continue
        except _Wrong as problem:
            wrong.append(f"{said.place}: {problem}")
            continue
        if said.silent and outcome.decision == "keep":
            silent += 1
            continue
        earlier = outcomes.setdefault(outcome.row, outcome)
        if earlier.label != outcome.label:
            wrong.append(f"{known.ids[outcome.row]!r}: {_whose(earlier)}, and {_whose(outcome)}")
    if wrong:
        raise InputError(_count(wrong), "Nothing was written: correct them first.", items=wrong)
    if stale:
        raise StateError(_count(stale), "Nothing was written: scan again, and decide these anew.", items=stale)
    return outcomes, silent


class _Wrong(Exception):
    """A decision that means nothing in this run."""


class _Stale(Exception):
    """A decision about something that has changed."""


class _Known:
    """What a run knows, to hold decisions against."""

    def __init__(self, report: Report, root: Path) -> None:
        table = report.table
        self.root = os.path.abspath(root)
        self.ids: list[str] = table["id"].to_pylist()
        self.labels: list[str] = table["label"].to_pylist()
        self.hashes = table["sha256"].to_pylist()
        self.suggested = table["suggested_label"].to_pylist()
        self.classes = set(report.facts["classes"]) | set(self.labels)
        self.by_id = {name: {row} for row, name in enumerate(self.ids)}
        self.by_path: dict[str, set[int]] = {}
        for row, path in enumerate(table["path"].to_pylist()):
            if path is not None:
                self.by_path.setdefault(path, set()).add(row)

    def outcome(self, said: Decision, *, new_classes: bool) -> Outcome:
        row = self._row(said)
        label = self._label(said)
        if label is not None and label not in self.classes and not new_classes:
            close = difflib.get_close_matches(label.strip().lower(), sorted(self.classes), n=1)
            hint = f"did you mean {close[0]!r}?" if close else "--new-classes allows it"
            raise _Wrong(f"the class {label!r} is not in the run ({hint})")
        if label == "":
            raise _Wrong("the label is empty")
        if said.sha256 is not None and said.sha256 != self.hashes[row]:
            raise _Stale(f"{self.ids[row]!r} was another picture when this was decided")
        if said.given is not None and self.labels[row] not in (said.given, unguard_cell(said.given)):
            raise _Stale(f"{self.ids[row]!r} was {said.given!r} then, and is {self.labels[row]!r} in the run")
        word = _word(label, self.labels[row], self.suggested[row])
        if said.word == "keep" and word != "keep":
            raise _Wrong(f"{self.ids[row]!r} is kept, and called {label!r} in the same line")
        word = f"{word} (untouched)" if said.untouched and word == "accept" else word
        return Outcome(row, label, word, said.source, said.by, said.at, said.place)

    def _row(self, said: Decision) -> int:
        """The one row that is meant; an id means one, a path perhaps several, and both together must agree."""
        meant: set[int] | None = None
        for kind, name in said.names:
            found = self._rows(kind, name, said.guarded)
            if found is None:
                close = difflib.get_close_matches(name, self.ids[:COMPARED_IDS], n=1)
                raise _Wrong(f"{name!r} is not in the run" + (f": did you mean {close[0]!r}?" if close else ""))
            meant = found if meant is None else meant & found
        if not meant:
            raise _Wrong("it names no row" if meant is None else "its id and its path are different rows")
        if len(meant) > 1:
            ids = ", ".join(repr(self.ids[row]) for row in sorted(meant)[:3])
            raise _Wrong(f"{said.names[0][1]!r} is listed more than once: say which by id ({ids})")
        return next(iter(meant))

    def _rows(self, kind: str, name: str, guarded: bool) -> set[int] | None:
        tables = (self.by_id,) if kind == "id" else (self.by_path, self.by_id)
        plain = unguard_cell(name)
        spellings = [plain] if guarded else [name, plain, *self._other_spellings(name)]
        return next((table[text] for text in spellings for table in tables if text in table), None)

    def _other_spellings(self, name: str) -> list[str]:
        """A path as people write it: from the root of the disk, with a dot before it, or from Windows."""
        slashed = name.replace("\\", "/")
        inside = os.path.relpath(name, self.root) if os.path.isabs(name) else os.path.normpath(slashed)
        return [slashed, inside]

    def _label(self, said: Decision) -> str | None:
        if said.label is None or (not said.guarded and said.label in self.classes):
            return said.label
        return unguard_cell(said.label)


def accept_above(report: Report, least: float, decided: set[int]) -> dict[int, Outcome]:
    """The suggestions themselves, where the label is wrong with at least this probability and nobody has decided."""
    suspects = report.corrupted
    columns = (suspects[name].to_pylist() for name in ("row", "suggested_label", "corruption_probability"))
    return {
        row: Outcome(row, label, "accept (automatic)", f"accept-above {least:g}", "noisesieve", "", "")
        for row, label, chance in zip(*columns, strict=True)
        if label is not None and chance >= least and row not in decided
    }


def audit_table(report: Report, outcomes: dict[int, Outcome]) -> pa.Table:
    """Who said what of which row, in the dataset's order."""
    rows = sorted(outcomes)
    part = report.table.take(pa.array(rows, pa.int64()))
    kept = [outcomes[row] for row in rows]
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
            "place": [outcome.place for outcome in kept],
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
    return f"{_shown(outcome.label)}{by} in {outcome.place}"


def _shown(label: str | None) -> str:
    return "unusable" if label is None else repr(label)
