"""The dataset that `apply` writes: a table with its marks, or a tree with a file of decisions, and how to scan it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from noisesieve.commands.command_settings import ApplySettings
from noisesieve.core.columns import Texts
from noisesieve.core.records import DECIDED_COLUMN, Index
from noisesieve.decisions.marks import DecisionMark
from noisesieve.report.report import Report
from noisesieve.report.run import RunFolder
from noisesieve.sources.rewrite_table import REWRITERS, RowChange, rewrite_table
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.write_folder import write_folder
from noisesieve.sources.write_table import fill_table

DECISION_COLUMNS = pa.schema(
    {name: pa.string() for name in ("id", "sha256", "given", "decision", "label", "reviewer", "decided_at", "applied")}
)


def kept_decisions(whole: Index, report: Report, changes: dict[int, RowChange]) -> Iterator[dict[str, str]]:
    """Yield the decisions that a folder cannot carry, as a file of decisions about the new labels."""
    rows = np.array(sorted(changes), dtype=np.int64)
    places = report.texts("id").places(whole.column("ids").take(rows))
    hashes = report.take(np.maximum(places, 0), "sha256")["sha256"].to_pylist()
    for row, sha in zip(rows.tolist(), hashes, strict=True):
        change = changes[row]
        if change.label is not None and change.mark is not None:
            mark = DecisionMark.from_text(change.mark)
            assert mark is not None  # `apply` made the text
            cells = (whole.ids[row], sha, change.label, mark.decision, change.label, mark.by, mark.at, "yes")
            yield dict(zip(DECISION_COLUMNS.names, cells, strict=True))


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
    left_out = [row for row, change in changes.items() if change.label is None]
    kept = np.setdiff1d(np.arange(len(whole)), left_out)
    rest = whole.take(kept)
    places = {row: int(np.searchsorted(kept, row)) for row, change in changes.items() if change.label is not None}
    labels = rest.column("labels").changed({place: str(changes[row].label) for row, place in places.items()})
    if settings.tree is None:
        marks = {place: mark for row, place in places.items() if (mark := changes[row].mark) is not None}
        with target.open("xb") as file:
            return fill_table(rest, source, out, file, labels=labels, marks=_marks(marks, len(rest))), []
    target.mkdir()
    return None, write_folder(rest, labels, target, link=settings.tree == "link")


def _marks(marks: dict[int, str], rows: int) -> dict[str, pa.Array]:
    """Return the column of a new table that marks decided rows; none if there are no marks."""
    if not any(marks.values()):
        return {}
    return {DECIDED_COLUMN: Texts(pa.repeat("", rows), few=True).changed(marks).to_arrow()}


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
