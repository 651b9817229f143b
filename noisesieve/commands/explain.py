"""`noisesieve explain`: one verdict in full: its terms, the margin of each epoch, and similar images."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import normalize

from noisesieve import pixels
from noisesieve.commands._open_run import index_of_run, pixel_settings_of_run
from noisesieve.core.command_settings import ExplainSettings
from noisesieve.core.errors import NoisesieveError
from noisesieve.core.files import Document
from noisesieve.core.progress import Session
from noisesieve.core.records import Index, Ints
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.networks.embed import embed
from noisesieve.report import Report, find_row, read_report
from noisesieve.report.model_card import load_model

NEAREST = 3
COMPARED = 1000  # clean images per class that are compared, evenly spaced where there are more


@dataclass(frozen=True)
class MarginHistory:
    """The margin of a row after each of the last epochs, with the floor of the training loop."""

    first_epoch: int
    last_epoch: int
    margins: list[float]
    loop_eps: float | None


@dataclass(frozen=True)
class SimilarImage:
    """A clean image, and how similar it is: the cosine of the features."""

    id: str
    similarity: float


@dataclass(frozen=True)
class SimilarImages:
    """The most similar clean images of one class."""

    label: str
    examples: list[SimilarImage]


@dataclass(frozen=True)
class RowScores:
    """The scores of one readable row, as the report has them."""

    paper_verdict: str
    rank: int
    loss: float
    regularizer: float
    regularized_loss: float
    threshold: float
    margin: float
    predicted_label: str
    predicted_probability: float
    label_probability: float
    suggested_label: str | None
    corruption_probability: float
    flagged_epochs: float | None


@dataclass(frozen=True)
class Explanation:
    """Everything that a run stores about one row."""

    row: int
    id: str
    path: str | None
    label: str
    status: str
    verdict: str
    scores: RowScores | None  # None: the image could not be read
    of: int  # rows that have a rank
    low_evidence: bool
    sha256: str | None
    beta: float
    sieve_eps: float
    classes: int
    top: list[tuple[str, float]]  # the most probable classes
    margin_history: MarginHistory | None
    file: str | None = None
    neighbours: list[SimilarImages] | None = None

    @classmethod
    def of_row(cls, report: Report, row: int) -> Explanation:
        """Read what the report has of a row."""
        values = report.table.slice(row, 1).to_pylist()[0]
        scores = RowScores(**{item.name: values[item.name] for item in fields(RowScores)})
        return cls(
            **{name: values[name] for name in ("row", "id", "path", "label", "status", "verdict")},
            scores=None if values["margin"] is None else scores,
            of=len(report.table) - report.table["rank"].null_count,
            low_evidence=values["low_evidence"],
            sha256=values["sha256"],
            beta=report.facts.beta,
            sieve_eps=report.facts.sieve_eps,
            classes=len(report.facts.classes),
            top=list(zip(values["top_labels"] or [], values["top_probabilities"] or [], strict=True)),
            margin_history=margin_history_of(report, row),
        )

    def to_document(self) -> Document:
        """Return the explanation as one flat object; scores are null if the image could not be read."""
        document = asdict(self)
        scores = document.pop("scores") or dict.fromkeys(item.name for item in fields(RowScores))
        return document | scores


def explain(run: Path, name: str, settings: ExplainSettings, *, session: Session) -> Explanation:
    """Return everything that a run stores about one row, found by id, path or row number."""
    report = read_report(run)
    row = find_row(report, name)
    found = Explanation.of_row(report, row)
    try:
        index = index_of_run(report, settings.data, settings.root)
    except NoisesieveError as error:
        if settings.data is not None or settings.root is not None:
            raise
        session.warn(f"Similar images are left out: {error}")
        return found
    location = index.locate(row)
    return replace(
        found,
        file=location.file if location.column is None else None,
        neighbours=None if found.scores is None else nearest_clean_images(report, index, row, session),
    )


def margin_history_of(report: Report, row: int) -> MarginHistory | None:
    """Return the row's margin after each of the last epochs; None if it was not stored."""
    stored = report.read_beside("margin_history.parquet", filters=[("row", "=", row)])
    if stored is None or len(stored) == 0:
        return None
    margins, training = stored["margins"][0].as_py(), report.summary.training.facts
    return MarginHistory(training.epochs - len(margins) + 1, training.epochs, margins, training.loop_eps)


def nearest_clean_images(report: Report, index: Index, row: int, session: Session) -> list[SimilarImages]:
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

    def nearest(candidates: Ints) -> list[SimilarImage]:
        known = sorted((r for r in candidates.tolist() if r in position), key=lambda r: -similarity[position[r]])
        return [SimilarImage(ids[r], round(similarity[position[r]], 4)) for r in known[:NEAREST]]

    return [SimilarImages(label, nearest(candidates)) for label, candidates in groups.items()]


def _sampled(rows: Ints) -> Ints:
    if len(rows) <= COMPARED:
        return rows
    return rows[np.linspace(0, len(rows) - 1, COMPARED).round().astype(np.int64)]
