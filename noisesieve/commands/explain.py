"""`noisesieve explain`: one verdict in full: its terms, the margin of each epoch, and similar images."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.nn.functional import normalize

from noisesieve.commands._open_run import index_of_paths, pixel_settings_of_run
from noisesieve.commands._own_vectors import kind_of_vectors
from noisesieve.commands._row_features import open_features
from noisesieve.commands.command_settings import ExplainSettings
from noisesieve.core.errors import InputError, NoisesieveError
from noisesieve.core.files import Document, Json
from noisesieve.core.progress import Session
from noisesieve.core.records import Index, Ints
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.networks.embed import embed
from noisesieve.learn.recipes import HeadRecipe
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.report import Report, find_row, read_report
from noisesieve.report.run import method_of
from noisesieve.report.saved_model import load_model
from noisesieve.sources.source_settings import NOT_MOVED

NEAREST = 3
# Clean images per class that are compared, evenly spaced where there are more: features in the cache cost nothing,
# computing them takes about a second for 50 images on one core.
STORED, COMPUTED = 5000, 60


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
    decided: str | None = None  # what a person decided, in words
    ranked_by: str = "label_probability"  # or "suspicion": both kinds of heads and the noise model
    too_few: bool = False  # labels to tell how probable it is that this one is wrong
    file: str | None = None
    neighbours: list[SimilarImages] | None = None

    @classmethod
    def of_row(cls, report: Report, row: int) -> Explanation:
        """Read what the report has of a row."""
        values = report.take(np.array([row])).to_pylist()[0]
        scores = RowScores(**{item.name: values[item.name] for item in fields(RowScores)})
        return cls(
            **{name: values[name] for name in ("row", "id", "path", "label", "status", "verdict")},
            scores=None if values["margin"] is None else scores,
            of=len(report) - report.column("rank").null_count,
            low_evidence=values["low_evidence"],
            sha256=values["sha256"],
            beta=report.facts.beta,
            sieve_eps=report.facts.sieve_eps,
            classes=len(report.facts.classes),
            top=list(zip(values["top_labels"] or [], values["top_probabilities"] or [], strict=True)),
            margin_history=margin_history_of(report, row),
            decided=_decided(values),
            ranked_by=_ranked_by(report),
            too_few=report.summary.estimated_noise_rate.is_vague,
        )

    def to_document(self) -> Document:
        """Return the explanation as one flat object; scores are null if the image could not be read."""
        document = asdict(self)
        scores = document.pop("scores") or dict.fromkeys(item.name for item in fields(RowScores))
        return document | scores


def _ranked_by(report: Report) -> str:
    """Return what the rank orders by. Heads of the first method were ranked by the label's probability alone."""
    heads = isinstance(report.summary.training.recipe, HeadRecipe) and method_of(report.facts.settings) > 1
    return "suspicion" if heads else "label_probability"


def _decided(row: Json) -> str | None:
    """Return a person's decision about a row in words, or None."""
    label, by, at = (row[f"decided_{name}"] for name in ("label", "by", "at"))
    if row["decided"] is None:
        return None
    what = "unusable" if label is None else "kept" if label == row["label"] else f"changed to {label!r}"
    return f"{what}{f' by {by}' if by else ''}{f' on {at[:10]}' if at else ''}"


def explain(run: Path, name: str, settings: ExplainSettings, *, session: Session) -> Explanation:
    """Return everything that a run stores about one row, found by id, path or row number."""
    report = read_report(run)
    row = find_row(report, name)
    explanation = Explanation.of_row(report, row)
    try:
        index = index_of_paths(report, settings.moved)
    except NoisesieveError as error:
        if settings.moved != NOT_MOVED:
            raise
        session.warn(f"Similar images are left out: {error}")
        return explanation
    location = index.locate(row)
    explanation = replace(explanation, file=location.file or None if location.column is None else None)
    if explanation.scores is None or kind_of_vectors(report) == "predictions":
        return explanation
    try:
        return replace(explanation, neighbours=nearest_clean_images(report, index, row, session))
    except InputError as error:  # the user's file of embeddings is gone, or another one
        session.warn(f"Similar rows are left out: {error}")
        return explanation


def margin_history_of(report: Report, row: int) -> MarginHistory | None:
    """Return the row's margin after each of the last epochs; None if it was not stored."""
    stored = report.read_beside("margin_history.parquet")
    if stored is None or not {"row", "margins"} <= set(stored.column_names):
        return None
    stored = stored.filter(pc.equal(stored["row"], row))
    if len(stored) == 0 or stored["margins"].null_count:
        return None
    margins, training = stored["margins"][0].as_py(), report.summary.training.facts
    return MarginHistory(training.epochs - len(margins) + 1, training.epochs, margins, training.loop_eps)


def nearest_clean_images(report: Report, index: Index, row: int, session: Session) -> list[SimilarImages]:
    """Return the most similar clean images of the given and of the suggested class, by the network's features."""
    labels, clean = report.texts("label"), report.verdicts == "clean"
    facts = report.take(np.array([row]), "label", "suggested_label", "top_labels").to_pylist()[0]
    other = facts["suggested_label"] or next((label for label in facts["top_labels"] if label != facts["label"]), None)
    groups = {
        label: np.flatnonzero((labels.codes([label]) == 0) & clean & (np.arange(len(labels)) != row))
        for label in (facts["label"], other)
        if label is not None
    }
    chosen = {label: _sampled(rows, STORED) for label, rows in groups.items()}
    rows = np.concatenate(([row], *chosen.values())).astype(np.int64)
    stored = open_features(report, index, rows)
    if stored is not None:
        features = stored(rows)
    else:
        chosen = {label: _sampled(rows, COMPUTED) for label, rows in groups.items()}
        rows = np.concatenate(([row], *chosen.values())).astype(np.int64)
        rows, features = _computed_features(report, index, rows, session)
    if not len(rows) or rows[0] != row:
        session.warn("The image is missing or changed since the run: no similar images.")
        return []
    similarity = dict(zip(rows.tolist(), (features @ features[0]).tolist(), strict=True))

    def nearest(candidates: Ints) -> list[SimilarImage]:
        known = sorted((r for r in candidates.tolist() if r in similarity), key=lambda r: -similarity[r])[:NEAREST]
        ids = report.take(np.array(known, dtype=np.int64), "id")["id"].to_pylist()
        return [SimilarImage(name, round(similarity[r], 4)) for name, r in zip(ids, known, strict=True)]

    return [SimilarImages(label, nearest(candidates)) for label, candidates in chosen.items()]


def _computed_features(report: Report, index: Index, rows: Ints, session: Session) -> tuple[Ints, Tensor]:
    """Return those of the rows that can be read and have not changed, and their features, of length 1."""
    model = load_model(report.path.parent, torch.device("cpu"))
    order = np.sort(rows)  # embedded images are read in blocks of consecutive rows
    part = index.take(order)
    settings = replace(pixel_settings_of_run(report), cache=False)  # few images: no cache entry of their own
    with tempfile.TemporaryDirectory(prefix="noisesieve-") as scratch, Decoder(settings, session) as decoder:
        file_facts = decoder.inspect(part)
        decoded = decoder.decode(part, file_facts, size=model.image_size, scratch=Path(scratch))
        loader = BatchLoader(decoded.pixels, torch.device("cpu"), statistics=model.statistics)
        features = normalize(embed(model.network, loader, len(decoded.rows), flip=False), dim=1)
    before = report.take(order, "sha256")["sha256"].to_pylist()
    position = {
        int(order[i]): place for place, i in enumerate(decoded.rows.tolist()) if file_facts.sha256[i] == before[i]
    }
    known = [row for row in rows.tolist() if row in position]
    return np.array(known, dtype=np.int64), features[[position[row] for row in known]]


def _sampled(rows: Ints, most: int) -> Ints:
    """Return the rows, evenly spaced ones where there are more than `most`."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]
