"""Decisions against the report: each must mean one row, name a known class, contradict no other, and still hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from noisesieve.decisions.read import Decision
from noisesieve.errors import InputError, StateError
from noisesieve.names import unguard_cell
from noisesieve.report import Report


@dataclass(frozen=True)
class Outcome:
    """What becomes of one row. `label` None: it is left out."""

    row: int
    label: str | None
    decision: str  # accept, keep, relabel, unusable, or accept (automatic)
    source: str
    by: str
    at: str
    place: str


def resolve(report: Report, decisions: Sequence[Decision], *, new_classes: bool) -> dict[int, Outcome]:
    """Row → outcome. Unknown rows and classes, contradictions and stale decisions are all named, and refused."""
    table = report.table
    ids, paths = table["id"].to_pylist(), table["path"].to_pylist()
    labels, hashes = table["label"].to_pylist(), table["sha256"].to_pylist()
    suggested = table["suggested_label"].to_pylist()
    by_id = {name: row for row, name in enumerate(ids)}
    by_path: dict[str, int] = {}
    for row, path in enumerate(paths):
        if path is not None:
            by_path.setdefault(path, row)
    classes = set(report.facts["classes"]) | set(labels)
    wrong: list[str] = []
    stale: list[str] = []
    outcomes: dict[int, Outcome] = {}
    for said in decisions:
        found = _row_of(said, by_id, by_path)
        if found is None:
            wrong.append(f"{said.place}: {said.names[0] if said.names else ''!r} is not in the run")
            continue
        row = found
        label = said.label if said.label is None or said.label in classes else unguard_cell(said.label)
        if label is not None and label not in classes and not new_classes:
            wrong.append(f"{said.place}: the class {label!r} is not in the run (--new-classes allows it)")
            continue
        if label == "":
            wrong.append(f"{said.place}: the label is empty")
            continue
        if said.sha256 is not None and said.sha256 != hashes[row]:
            stale.append(f"{said.place}: {ids[row]!r} was another picture when this was decided")
        if said.given is not None and labels[row] not in (said.given, unguard_cell(said.given)):
            stale.append(f"{said.place}: {ids[row]!r} was {said.given!r} then, and is {labels[row]!r} in the run")
        outcome = Outcome(
            row=row,
            label=label,
            decision=_word(label, labels[row], suggested[row]),
            source=said.source,
            by=said.by,
            at=said.at,
            place=said.place,
        )
        earlier = outcomes.setdefault(row, outcome)
        if earlier.label != label:
            wrong.append(
                f"{said.place}: {ids[row]!r} is {_shown(label)}, and {_shown(earlier.label)} in {earlier.place}"
            )
    if wrong:
        raise InputError(_count(wrong), "Nothing was written: correct them first.", items=wrong)
    if stale:
        raise StateError(_count(stale), "Nothing was written: scan again, and decide these anew.", items=stale)
    return outcomes


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


def _row_of(said: Decision, by_id: dict[str, int], by_path: dict[str, int]) -> int | None:
    for name in said.names:
        for spelled in (name, unguard_cell(name)):
            for known in (by_id, by_path):
                if spelled in known:
                    return known[spelled]
    return None


def _word(label: str | None, given: str, suggested: str | None) -> str:
    if label is None:
        return "unusable"
    if label == given:
        return "keep"
    return "accept" if label == suggested else "relabel"


def _shown(label: str | None) -> str:
    return "unusable" if label is None else repr(label)
