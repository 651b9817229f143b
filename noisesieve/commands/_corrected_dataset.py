"""The dataset that `apply` writes: a table with its marks, or a tree with a file of decisions, and how to scan it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from noisesieve.commands.command_settings import ApplySettings
from noisesieve.core.records import DECIDED_COLUMN, Index
from noisesieve.decisions.marks import DecisionMark
from noisesieve.report.report import Report
from noisesieve.report.run import RunFolder
from noisesieve.sources.rewrite_table import REWRITERS, RowChange, rewrite_table
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.write_folder import write_folder
from noisesieve.sources.write_table import fill_table

DECISION_COLUMNS = ["id", "sha256", "given", "decision", "label", "reviewer", "decided_at", "applied"]


def kept_decisions(whole: Index, report: Report, changes: dict[int, RowChange]) -> Iterator[dict[str, str]]:
    """Yield the decisions that a folder cannot carry, as a file of decisions about the new labels."""
    hashes = dict(zip(report.table["id"].to_pylist(), report.table["sha256"].to_pylist(), strict=True))
    for row, change in sorted(changes.items()):
        if change.label is not None and change.mark is not None:
            name, mark = whole.ids[row], DecisionMark.from_text(change.mark)
            assert mark is not None  # `apply` made the text
            cells = (name, hashes[name], change.label, mark.decision, change.label, mark.by, mark.at, "yes")
            yield dict(zip(DECISION_COLUMNS, cells, strict=True))


def write_dataset(
    whole: Index, source: SourceSettings, changes: dict[int, RowChange], settings: ApplySettings, target: Path
) -> tuple[Path | None, list[str]]:
    """Write the dataset with these changes. Returns the --root that it must be read with, or None, and notes."""
    out = settings.output
    if whole.kind in REWRITERS:
        with target.open("xb") as file:
            rewrite_table(whole, source, changes, file)
        embedded = whole.locate(0).column is not None
        same = out.resolve().parent == whole.root.resolve()
        return (None if embedded or same else whole.root), []
    left_out = {row for row, change in changes.items() if change.label is None}
    kept = np.array([row for row in range(len(whole)) if row not in left_out], dtype=np.int64)
    kept_changes = [changes.get(row) for row in kept.tolist()]
    labels = [
        whole.labels[row] if change is None else str(change.label)
        for row, change in zip(kept.tolist(), kept_changes, strict=True)
    ]
    if settings.tree is None:
        with target.open("xb") as file:
            return fill_table(whole.take(kept), source, out, file, labels=labels, marks=_marks(kept_changes)), []
    target.mkdir()
    return None, write_folder(whole.take(kept), labels, target, link=settings.tree == "link")


def _marks(changes: list[RowChange | None]) -> dict[str, list[str]]:
    """Return the column of a new table that marks decided rows; none if there are no marks."""
    cells = ["" if change is None or change.mark is None else change.mark for change in changes]
    return {DECIDED_COLUMN: cells} if any(cells) else {}


def scan_options(source: SourceSettings, root: Path | None) -> list[str]:
    """Return the options that `scan` needs to read the new table as it read the old one."""
    options = [] if root is None else ["--root", str(root)]
    if source.path.is_dir():
        return options
    plain = SourceSettings(source.path)
    for name in ("path_column", "label_column", "image_column", "id_column", "trusted_column"):
        if (value := getattr(source, name)) != getattr(plain, name):
            options += [f"--{name.replace('_', '-')}", str(value)]
    return options


def vector_options(report: Report) -> list[str]:
    """Return the options that name the user's own vectors again."""
    known = RunFolder(report.path.parent).read()
    location = (known.location if known is not None else None) or {}
    options = [
        part for name in ("embeddings", "predictions") if name in location for part in (f"--{name}", location[name])
    ]
    columns = report.facts.settings.get("vectors", {}).get("classes")
    return [*options, "--classes", ",".join(columns)] if options and columns else options
