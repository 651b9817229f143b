"""`noisesieve explain`: one verdict in full: its terms, the margin of each epoch, and similar images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn.functional import normalize

from noisesieve import pixels
from noisesieve.commands._open_run import index_of_run, pixel_settings_of_run
from noisesieve.core.command_settings import ExplainSettings
from noisesieve.core.errors import NoisesieveError, StateError
from noisesieve.core.files import Json
from noisesieve.core.progress import Session
from noisesieve.core.records import Index, Ints
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.networks.embed import embed
from noisesieve.report import Report, find_row, read_report
from noisesieve.report.model_card import load_model

NEAREST = 3
COMPARED = 1000  # clean images per class that are compared, evenly spaced where there are more
SCORES = ("loss", "regularizer", "regularized_loss", "threshold", "margin")
LABELS = ("predicted_label", "predicted_probability", "label_probability", "suggested_label", "corruption_probability")


def explain(run: Path, name: str, settings: ExplainSettings, *, session: Session) -> Json:
    """Return everything that a run stores about one row, found by id, path or row number."""
    report = read_report(run)
    row = find_row(report, name)
    facts = report.table.slice(row, 1).to_pylist()[0]
    readable = facts["margin"] is not None
    document = {
        **{key: facts[key] for key in ("row", "id", "path", "label", "status", "verdict", "paper_verdict", "rank")},
        "of": len(report.table) - report.table["rank"].null_count,
        **{key: facts[key] for key in (*SCORES, *LABELS, "flagged_epochs", "low_evidence", "sha256")},
        "beta": report.facts.beta,
        "sieve_eps": report.facts.sieve_eps,
        "classes": len(report.facts.classes),
        "top": list(zip(facts["top_labels"], facts["top_probabilities"], strict=True)) if readable else [],
        "margin_history": margin_history_of(report, row),
        "file": None,
        "neighbours": None,
    }
    try:
        index = index_of_run(report, settings.data, settings.root)
    except NoisesieveError as error:
        if settings.data is not None or settings.root is not None:
            raise
        session.warn(f"Similar images are left out: {error}")
        return document
    location = index.locate(row)
    document["file"] = location.file if location.column is None else None
    if readable:
        document["neighbours"] = nearest_clean_images(report, index, row, session)
    return document


def margin_history_of(report: Report, row: int) -> Json | None:
    """Return the row's margin after each of the last epochs, with the floor of the loop; None if it was not stored."""
    file = report.path.parent / "margin_history.parquet"
    if not file.exists():
        return None
    try:
        stored = pq.read_table(file, filters=[("row", "=", row)])
    except (pa.ArrowException, OSError) as error:
        raise StateError(f"{file}: damaged ({error}).", "Scan again with --force.") from error
    if len(stored) == 0:
        return None
    margins = stored["margins"][0].as_py()
    training = report.summary.training.facts
    return {
        "first_epoch": training.epochs - len(margins) + 1,
        "last_epoch": training.epochs,
        "margins": margins,
        "loop_eps": training.loop_eps,
    }


def nearest_clean_images(report: Report, index: Index, row: int, session: Session) -> list[Json]:
    """Return the most similar clean images of the given and of the suggested class, by the network's features."""
    model = load_model(report.path.parent, torch.device("cpu"))
    labels, verdicts = np.array(report.table["label"].to_pylist(), dtype=object), report.verdicts
    facts = report.table.slice(row, 1).to_pylist()[0]
    other = facts["suggested_label"] or next((label for label in facts["top_labels"] if label != facts["label"]), None)
    groups = {
        label: _sampled(np.flatnonzero((labels == label) & (verdicts == "clean") & (np.arange(len(labels)) != row)))
        for label in (facts["label"], other)
        if label is not None
    }
    rows = np.unique(np.concatenate(([row], *groups.values()))).astype(np.int64)
    part = index.take(rows)
    settings = replace(pixel_settings_of_run(report), cache=False)  # few images: no cache entry of their own
    file_facts = pixels.inspect_files(part, settings, session)
    decoded = pixels.decode(
        part,
        file_facts,
        settings,
        session,
        size=model.image_size,
        scratch=report.path.parent / "scratch",
    )
    readable = rows[decoded.rows]
    loader = BatchLoader(decoded.pixels, torch.device("cpu"), statistics=model.statistics)
    features = normalize(embed(model.network, loader, len(readable), flip=model.flip), dim=1)
    position = {int(r): i for i, r in enumerate(readable.tolist())}
    if row not in position or file_facts.sha256[int(np.searchsorted(rows, row))] != facts["sha256"]:
        session.warn("The image is missing or changed since the run: no similar images.")
        return []
    similarity = (features @ features[position[row]]).tolist()
    ids = report.table["id"].to_pylist()

    def nearest(candidates: Ints) -> list[Json]:
        known = sorted((r for r in candidates.tolist() if r in position), key=lambda r: -similarity[position[r]])
        return [{"id": ids[r], "similarity": round(similarity[position[r]], 4)} for r in known[:NEAREST]]

    return [{"label": label, "examples": nearest(candidates)} for label, candidates in groups.items()]


def _sampled(rows: Ints) -> Ints:
    if len(rows) <= COMPARED:
        return rows
    return rows[np.linspace(0, len(rows) - 1, COMPARED).round().astype(np.int64)]
