"""Compare two reports of one dataset: which suspects are new, fixed, or still there."""

from __future__ import annotations

from collections import Counter
from typing import Any

from noisesieve.core.text import natural_key
from noisesieve.report.parquet import Report

KINDS = ("new", "fixed", "cleared", "waived", "gone", "persistent")


def compare(before: Report, after: Report) -> dict[str, Any]:
    """Match rows by id and path, else by content, and group the suspects of both reports.

    new: a suspect only in the later report. fixed: its label changed and it is no suspect any more. cleared: the same
    label, but no suspect any more. waived: reviewed, the label is right. gone: the row is missing or unreadable.
    persistent: a suspect in both.
    """
    old, new = _rows(before), _rows(after)
    new_row_of = _match(old, new)
    backwards = {b: a for a, b in new_row_of.items()}
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for i, row in enumerate(old):
        if row["suspect"]:
            now = new[new_row_of[i]] if i in new_row_of else None
            found[_kind_of_change(row, now)].append(_entry(row, now))
    for i, row in enumerate(new):
        if row["suspect"]:
            then = old[backwards[i]] if i in backwards else None
            if then is None or not then["suspect"]:
                found["new"].append(_entry(then, row))
    return {
        "before": {"run": _path(before), "examples": len(old), "suspects": sum(r["suspect"] for r in old)},
        "after": {"run": _path(after), "examples": len(new), "suspects": sum(r["suspect"] for r in new)},
        "matched": len(new_row_of),
        "relabelled": sum(old[a]["label"] != new[b]["label"] for a, b in new_row_of.items()),
        "counts": {kind: len(rows) for kind, rows in found.items()},
        "suspects": found,
        "classes": _classes(old, new),
    }


def _path(report: Report) -> str:
    return str(report.path.parent if report.path.name == "report.parquet" else report.path)


def _rows(report: Report) -> list[dict[str, Any]]:
    names = ["row", "id", "path", "sha256", "label", "suggested_label", "corruption_probability", "waived"]
    rows: list[dict[str, Any]] = report.table.select(names).to_pylist()
    flags = (report.verdicts == "corrupted") & ~report.table["waived"].to_numpy(zero_copy_only=False)
    scored = (report.verdicts == "corrupted") | (report.verdicts == "clean")
    for row, suspect, known in zip(rows, flags.tolist(), scored.tolist(), strict=True):
        row["suspect"], row["judged"] = suspect, known
        if row["path"] is None and row["id"] == str(row["row"]):
            row["id"] = None  # a row number, which changes when an earlier row is removed
    return rows


def _match(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> dict[int, int]:
    """Return row of the old report → row of the new one: the same id, else the same path, else the same content.

    Of several rows with the same content, those with the same label are matched first.
    """
    new_row_of: dict[int, int] = {}
    taken: set[int] = set()
    for key in ("id", "path"):
        row_of = {row[key]: i for i, row in enumerate(new) if row[key] is not None and i not in taken}
        for i, row in enumerate(old):
            j = row_of.get(row[key]) if i not in new_row_of and row[key] is not None else None
            if j is not None and j not in taken:
                new_row_of[i] = j
                taken.add(j)
    for keys in (("sha256", "label"), ("sha256",)):
        free: dict[tuple[str, ...], list[int]] = {}
        for j, row in enumerate(new):
            if j not in taken and row["sha256"] is not None:
                free.setdefault(tuple(row[key] for key in keys), []).append(j)
        for i, row in enumerate(old):
            if i not in new_row_of and (found := free.get(tuple(row[key] for key in keys))):
                new_row_of[i] = found.pop(0)
                taken.add(new_row_of[i])
    return new_row_of


def _kind_of_change(then: dict[str, Any], now: dict[str, Any] | None) -> str:
    if now is None or not now["judged"]:
        return "gone"
    if now["suspect"]:
        return "persistent"
    if now["waived"]:
        return "waived"
    return "fixed" if now["label"] != then["label"] else "cleared"


def _entry(then: dict[str, Any] | None, now: dict[str, Any] | None) -> dict[str, Any]:
    row = now or then
    assert row is not None
    return {
        "id": row["id"] or str(row["row"]),
        "before": None if then is None else then["label"],
        "after": None if now is None else now["label"],
        "suggested_label": row["suggested_label"],
        "corruption_probability": row["corruption_probability"],
    }


def _classes(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def counted(rows: list[dict[str, Any]]) -> tuple[Counter[str], Counter[str]]:
        totals = Counter(row["label"] for row in rows if row["judged"])
        return Counter(row["label"] for row in rows if row["suspect"]), totals

    (old_hits, old_totals), (new_hits, new_totals) = counted(old), counted(new)
    return [
        {
            "label": label,
            "before": {"corrupted": old_hits[label], "of": old_totals[label]},
            "after": {"corrupted": new_hits[label], "of": new_totals[label]},
        }
        for label in sorted(old_totals.keys() | new_totals.keys(), key=natural_key)
    ]
