"""Decisions taken back: what people said of a run's suspects becomes a corrected dataset. The old one is never changed.

TAKE BACK decisions decision files      → outcomes, checked against the report and the pictures
          sources   dataset + outcomes  → a corrected dataset, and who said what
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow.compute as pc

from noisesieve import decisions, pixels, sources
from noisesieve.decisions.resolve import audit_table
from noisesieve.errors import InputError, OutputError, StateError, UsageError
from noisesieve.exports.tables import fill_csv
from noisesieve.files import filling, replacing
from noisesieve.handover import refuse_dataset
from noisesieve.records import Index
from noisesieve.reopen import aligned, pixels_of, settings_of
from noisesieve.report import Report
from noisesieve.settings import ApplySettings, SourceSettings
from noisesieve.sources.rewrite import rewrite
from noisesieve.sources.table import KINDS
from noisesieve.sources.tree import plant_tree
from noisesieve.sources.write import fill_table, table_kind
from noisesieve.watch import Watcher

Pause = Callable[[], None]


def apply(report: Report, settings: ApplySettings, *, watcher: Watcher, pause: Pause) -> dict[str, Any]:
    """Write a corrected dataset, the log of who said what, and a summary. Refused as a whole, or done as a whole."""
    scanned = settings_of(report, settings.data, settings.root).source
    refuse_dataset(report, settings.output, settings.data, settings.root)
    _refuse_existing(settings)
    whole = sources.read_all(scanned)
    index = aligned(report, sources.narrow(whole, scanned))
    _refuse_kind(whole, scanned, settings)
    said = [decisions.read(file) for file in settings.decisions]
    found = [decision for file in said for decision in file.decisions]
    outcomes, kept_silent = decisions.resolve(report, found, root=index.root, new_classes=settings.new_classes)
    if settings.accept_above is not None:
        outcomes |= decisions.accept_above(report, settings.accept_above, set(outcomes))
    undecided = kept_silent + sum(file.undecided for file in said)
    if not outcomes:
        _refuse_nothing(report, settings, undecided)
    _refuse_changed(report, index, outcomes, watcher, pause)
    place = {name: row for row, name in enumerate(whole.ids)}
    changes = {
        place[index.ids[row]]: outcome.label
        for row, outcome in outcomes.items()
        if outcome.label is None or outcome.label != index.labels[row]
    }
    left_out = sum(label is None for label in changes.values())
    if left_out == len(whole):
        raise InputError("Every row would be left out.", "Nothing was written.")
    document = {
        "output": str(settings.output),
        "audit": str(beside(settings.output, "audit.csv")),
        "examples": len(whole) - left_out,
        "decided": len(outcomes),
        "undecided": undecided,
        "open": _still_open(report, outcomes),
        "changed": len(changes) - left_out,
        "left_out": left_out,
        "decisions": dict(sorted(Counter(outcome.decision for outcome in outcomes.values()).items())),
        "moves": _moves(index, outcomes),
    }
    return _publish(report, whole, scanned, changes, outcomes, document, settings)


def _refuse_nothing(report: Report, settings: ApplySettings, undecided: int) -> NoReturn:
    names = ", ".join(str(file) for file in settings.decisions)
    problem = f"{names}: {undecided:,} entries, none of them decided." if names else "Nobody has decided anything."
    if settings.accept_above is not None:
        most = pc.max(report.corrupted["corruption_probability"]).as_py()
        problem += f" The highest probability of a suspect is {0.0 if most is None else most:.4f}."
    raise InputError(problem, "Decide something first, or lower --accept-above.")


def _still_open(report: Report, outcomes: dict[int, decisions.Outcome]) -> int:
    """Suspects that nobody has decided yet."""
    return len(set(report.corrupted["row"].to_pylist()) - outcomes.keys())


def beside(out: Path, ending: str) -> Path:
    """`new.csv` → `new.audit.csv`."""
    return out.with_name(f"{out.stem if out.suffix else out.name}.{ending}")


def _refuse_existing(settings: ApplySettings) -> None:
    out = settings.output
    if not out.name:
        raise OutputError(f"{out}: is a folder.", "Choose a name for the corrected dataset with -o.")
    if settings.tree is not None and out.suffix.lower() in KINDS:
        raise UsageError(f"-o {out}: --tree makes a folder.", "Leave the ending out, or leave --tree out.")
    for file in (out, beside(out, "audit.csv"), beside(out, "summary.json")):
        if any(file.exists() and given.exists() and file.samefile(given) for given in settings.decisions):
            raise OutputError(f"{file}: holds the decisions themselves.", "Choose another name with -o.")
        if file.exists() and not settings.force:
            raise OutputError(f"{file}: is there already.", "Choose another name with -o, or pass --force.")
        if file.is_dir() and (file != out or settings.tree is None):
            raise OutputError(f"{file}: is a folder.", "Choose another name with -o.")


def _refuse_kind(whole: Index, source: SourceSettings, settings: ApplySettings) -> None:
    """Before any decision is read: can the result be what the user asked for?"""
    if settings.tree is not None:
        if whole.kind != "folder":
            raise UsageError("--tree is for image folders.", "Leave it out: a table stays a table.")
        return
    kind = table_kind(whole, source, settings.output)
    if whole.kind != "folder" and kind != whole.kind:
        raise UsageError(
            f"-o {settings.output}: the dataset is a {whole.kind} table, and stays one.",
            f"Let the name end in {source.path.suffix}.",
        )


def _refuse_changed(
    report: Report, index: Index, outcomes: dict[int, decisions.Outcome], watcher: Watcher, pause: Pause
) -> None:
    """A decision about a picture that has changed since the run is no decision."""
    rows = np.array(sorted(outcomes), dtype=np.int64)
    looks = pixels.look(index, pixels_of(report), watcher, rows=rows, pause=pause)
    before = report.table["sha256"].to_pylist()
    changed = [
        f"{index.ids[row]!r}: {'changed since the run' if sha is not None else status}"
        for row, sha, status in zip(rows.tolist(), looks.sha256, looks.status, strict=True)
        if sha != before[row]
    ]
    if changed:
        raise StateError(
            "Decided pictures are no longer what they were:",
            "Nothing was written: scan again, and decide these anew.",
            items=changed,
        )


def _publish(
    report: Report,
    whole: Index,
    source: SourceSettings,
    changes: dict[int, str | None],
    outcomes: dict[int, decisions.Outcome],
    document: dict[str, Any],
    settings: ApplySettings,
) -> dict[str, Any]:
    """Write all three beside their places, then move them there: log and summary first, the dataset last."""
    out, summary = settings.output, beside(settings.output, "summary.json")
    with contextlib.ExitStack() as stack:
        place: Any = stack.enter_context(
            replacing(out) if settings.tree is None else filling(out, folder=True, force=settings.force)
        )
        root, notes = _write_dataset(whole, source, changes, settings, place)
        document |= {"root": None if root is None else str(root), "notes": notes, "scan": _scan_options(source, root)}
        log = audit_table(report, outcomes)
        fill_csv(stack.enter_context(replacing(Path(document["audit"]))), log.column_names, log.to_pylist())
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        stack.enter_context(replacing(summary)).write(text.encode("utf-8", "backslashreplace"))
    return {**document, "summary": str(summary)}


def _write_dataset(
    whole: Index, source: SourceSettings, changes: dict[int, str | None], settings: ApplySettings, place: Any
) -> tuple[Path | None, list[str]]:
    """The dataset with these changes; the --root that it is read with, where it needs one."""
    out = settings.output
    if whole.kind != "folder":
        rewrite(whole, source, changes, place)
        embedded = whole.places(0).column is not None
        same = out.resolve().parent == whole.root.resolve()
        return (None if embedded or same else whole.root), []
    kept = np.array([row for row in range(len(whole)) if changes.get(row, "") is not None], dtype=np.int64)
    labels = [str(changes.get(row, whole.labels[row])) for row in kept.tolist()]
    if settings.tree is None:
        return fill_table(whole.take(kept), source, out, place, labels=labels), []
    return None, plant_tree(whole.take(kept), labels, place, link=settings.tree == "link")


def _scan_options(source: SourceSettings, root: Path | None) -> list[str]:
    """What `scan` needs to read the new table as it read the old one."""
    options = [] if root is None else ["--root", str(root)]
    if source.path.is_dir():
        return options
    plain = SourceSettings(source.path)
    for name in ("path_column", "label_column", "image_column", "id_column", "trusted_column"):
        if (value := getattr(source, name)) != getattr(plain, name):
            options += [f"--{name.replace('_', '-')}", str(value)]
    return options


def _moves(index: Index, outcomes: dict[int, decisions.Outcome]) -> list[dict[str, Any]]:
    """Which label became which, how often, most first."""
    pairs = Counter(
        (index.labels[row], outcome.label)
        for row, outcome in outcomes.items()
        if outcome.label is not None and outcome.label != index.labels[row]
    )
    return [{"from": old, "to": new, "count": count} for (old, new), count in pairs.most_common()]
