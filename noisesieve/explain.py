"""Why this verdict: the arithmetic of one row, the course of its margin, and the pictures the network finds alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn.functional import normalize

from noisesieve import pixels
from noisesieve.errors import NoisesieveError, StateError
from noisesieve.learn.embed import embed
from noisesieve.learn.feed import Feed
from noisesieve.learn.model import load_model
from noisesieve.records import Index, Ints
from noisesieve.reopen import index_of, pixels_of
from noisesieve.report import Report, find_row
from noisesieve.watch import Watcher

NEAREST = 3
COMPARED = 1000  # clean pictures of a class that are compared, evenly drawn where there are more
SCORES = ("loss", "regularizer", "regularized_loss", "threshold", "margin")
WORDS = ("predicted_label", "predicted_probability", "label_probability", "suggested_label", "corruption_probability")


def explain(
    report: Report, name: str, *, data: Path | None, root: Path | None, watcher: Watcher, pause: Callable[[], None]
) -> dict[str, Any]:
    """Everything that a run knows of one row, found by id, path or row number."""
    row = find_row(report, name)
    facts = report.table.slice(row, 1).to_pylist()[0]
    readable = facts["margin"] is not None
    document = {
        **{key: facts[key] for key in ("row", "id", "path", "label", "status", "verdict", "paper_verdict", "rank")},
        "of": len(report.table) - report.table["rank"].null_count,
        **{key: facts[key] for key in (*SCORES, *WORDS, "flagged_epochs", "low_evidence", "sha256")},
        "beta": report.facts["beta"],
        "sieve_eps": report.facts["sieve_eps"],
        "classes": len(report.facts["classes"]),
        "top": list(zip(facts["top_labels"], facts["top_probabilities"], strict=True)) if readable else [],
        "course": course_of(report, row),
        "file": None,
        "neighbours": None,
    }
    try:
        index = index_of(report, data, root)
    except NoisesieveError as error:
        if data is not None or root is not None:
            raise
        watcher.warn(f"Without the pictures: {error}")
        return document
    place = index.places(row)
    document["file"] = place.file if place.column is None else None
    if readable:
        document["neighbours"] = neighbours(report, index, row, watcher, pause)
    return document


def course_of(report: Report, row: int) -> dict[str, Any] | None:
    """The row's margin after each of the last epochs, as the sieve inside the loop saw it; None: not kept."""
    file = report.path.parent / "course.parquet"
    if not file.exists():
        return None
    try:
        found = pq.read_table(file, filters=[("row", "=", row)])
    except (pa.ArrowException, OSError) as error:
        raise StateError(f"{file}: damaged ({error}).", "Scan again with --force.") from error
    if len(found) == 0:
        return None
    margins = found["margins"][0].as_py()
    training = report.summary["training"]
    return {
        "first_epoch": training["epochs"] - len(margins) + 1,
        "last_epoch": training["epochs"],
        "margins": margins,
        "loop_eps": training["loop_eps"],
    }


def neighbours(
    report: Report, index: Index, row: int, watcher: Watcher, pause: Callable[[], None]
) -> list[dict[str, Any]]:
    """The clean pictures of the given and of the suggested class that the network finds most like this one."""
    model = load_model(report.path.parent, torch.device("cpu"))
    labels, verdicts = np.array(report.table["label"].to_pylist(), dtype=object), report.verdicts
    facts = report.table.slice(row, 1).to_pylist()[0]
    other = facts["suggested_label"] or next((label for label in facts["top_labels"] if label != facts["label"]), None)
    groups = {
        label: _drawn(np.flatnonzero((labels == label) & (verdicts == "clean") & (np.arange(len(labels)) != row)))
        for label in (facts["label"], other)
        if label is not None
    }
    rows = np.unique(np.concatenate(([row], *groups.values()))).astype(np.int64)
    part = index.take(rows)
    settings = replace(pixels_of(report), cache=False)  # a few pictures: not worth an entry of their own
    looks = pixels.look(part, settings, watcher, pause=pause)
    decoded = pixels.decode(
        part,
        looks,
        settings,
        watcher,
        size=model.image_size,
        scratch=report.path.parent / "scratch",
        pause=pause,
    )
    seen = rows[decoded.rows]  # the pictures that can still be read
    feed = Feed(decoded.pixels, torch.device("cpu"), statistics=model.statistics)
    features = normalize(embed(model.network, feed, len(seen), flip=model.flip), dim=1)
    place = {int(r): i for i, r in enumerate(seen.tolist())}
    if row not in place or looks.sha256[int(np.searchsorted(rows, row))] != facts["sha256"]:
        watcher.warn("The picture is gone or changed since the run: no neighbours.")
        return []
    likeness = (features @ features[place[row]]).tolist()
    ids = report.table["id"].to_pylist()

    def nearest(candidates: Ints) -> list[dict[str, Any]]:
        known = sorted((r for r in candidates.tolist() if r in place), key=lambda r: -likeness[place[r]])
        return [{"id": ids[r], "similarity": round(likeness[place[r]], 4)} for r in known[:NEAREST]]

    return [{"label": label, "examples": nearest(candidates)} for label, candidates in groups.items()]


def _drawn(rows: Ints) -> Ints:
    if len(rows) <= COMPARED:
        return rows
    return rows[np.linspace(0, len(rows) - 1, COMPARED).round().astype(np.int64)]
