"""The data of the review page: the run in a few numbers, and its suspects, most suspicious first."""

from __future__ import annotations

import base64
import shlex
from dataclasses import dataclass, field

import numpy as np

from noisesieve import __version__
from noisesieve.core.files import digest
from noisesieve.core.records import DECIDED_COLUMN, Ints
from noisesieve.core.text import natural_key
from noisesieve.report.headline import budget_sentence, count_sentence, noise_rate_sentence, nothing_flagged_sentence
from noisesieve.report.report import Report
from noisesieve.report.schema import COLUMNS
from noisesieve.report.summary import ClassFlagged, Summary
from noisesieve.review.charts import HeatMap, Histogram, count_confusions, count_margins
from noisesieve.review.references import References, group_values

SHOWN_TOP = 3
LONGEST_TEXT = 600  # characters of a row that has no image


@dataclass(frozen=True)
class ShownSuspect:
    """A suspect as the script shows it. Classes are numbers."""

    id: str
    path: str | None
    sha256: str | None
    given: int
    suggested: int | None
    margin: float
    rank: int | None
    chance: float | None  # None: there are too few labels to tell
    givenProbability: float  # noqa: N815, by the model
    top: list[tuple[int, float]]
    near: tuple[list[int], list[int]]  # references of the given and of the suggested class
    order: int  # among suspects that look alike
    group: str | None  # value of the column that the run was grouped by
    image: str | None  # data: URL
    text: str  # the user's own columns, where there is no image
    sample: bool  # of the random sample


@dataclass(frozen=True)
class EarlierDecision:
    """A row that a person decided on before this run."""

    name: str  # its path, or its id
    given: str
    decided: str | None  # None: unusable
    by: str
    at: str
    image: str | None  # data: URL


@dataclass(frozen=True)
class ShownReference:
    """A clean image that suspects are compared with."""

    label: int
    image: str | None  # data: URL


@dataclass(frozen=True)
class ScriptData:
    """What is embedded as JSON for the script."""

    run: str
    name: str
    version: str
    classes: list[str]
    suspects: list[ShownSuspect]
    references: list[ShownReference]
    total: int
    files: str | None  # the dataset's folder as seen from the page; None: embedded images
    guard: bool  # every tenth sheet hides clean images of other classes
    groupColumn: str | None  # noqa: N815


@dataclass(frozen=True)
class PageData:
    """Everything the template needs; all but `script` is static."""

    title: str
    summary: Summary
    classes: list[ClassFlagged]  # noisiest first
    heat: HeatMap
    histogram: Histogram
    script: ScriptData
    headline: str  # what is flagged, what is estimated, and what it brings to look
    min_probability: float  # probability from which a flagged row is shown
    unlikely: int  # flagged rows below it
    run: str  # the run's path for the commands that the page prints
    earlier: list[EarlierDecision]
    decided: int  # rows that were decided before; not all may be shown
    on_page: str  # which of the flagged rows the page shows
    corrected: str  # -o of the `apply` that follows

    @property
    def image_sources(self) -> str:
        """What the page's policy allows for images beside its own ones: the dataset's files, if it names them."""
        return "" if self.script.files is None else " file:"


def decided_rows(report: Report) -> Ints:
    """Return the rows that people had decided on before the run, in the dataset's order."""
    return np.flatnonzero(report.column("decided").is_valid().to_numpy()).astype(np.int64)


@dataclass(frozen=True)
class PageImages:
    """Thumbnails by row: of suspects, of rows that were decided before, and of references."""

    shown: dict[int, bytes | None]
    references: dict[int, bytes | None] = field(default_factory=dict)
    files: str | None = None  # the dataset's folder as seen from the page


def build_page_data(
    report: Report,
    rows: Ints,
    images: PageImages,
    references: References,
    *,
    min_probability: float,
    run: str,
    corrected: str,
    sample: int = 0,
    guard: bool = False,
) -> PageData:
    """Return the page data of a report and of some of its rows; the first `sample` of them are the random sample.

    The others are suspects, which are wrong with at least `min_probability`. `run` is the run's path as the reader
    would type it, `corrected` the output of the next command.
    """
    summary, vague = report.summary, report.summary.estimated_noise_rate.is_vague
    why = count_sentence(summary)
    sentences = [why[:1].upper() + why[1:], noise_rate_sentence(summary), budget_sentence(summary)]
    sentences.append(nothing_flagged_sentence(summary))
    classes: list[str] = report.facts.classes
    name = report.path.parent.resolve().name
    decided = decided_rows(report)
    shown, suspects = (
        _suspects(report, rows, images.shown, references, classes, sample),
        len(report.suspect_rows(min_probability)),
    )
    flagged = len(report.suspect_rows(0.0))
    number = {label: i for i, label in enumerate(classes)}
    compared = [
        ShownReference(number[label], _data_url(images.references.get(row)))
        for row, label in zip(references.rows, references.labels, strict=True)
    ]
    on_page = len(shown) - sample
    return PageData(
        title=name,
        summary=summary,
        classes=sorted(summary.classes, key=lambda row: (-(row.share or 0.0), natural_key(row.label))),
        heat=count_confusions(report.take(rows, "label", "suggested_label"), classes),
        histogram=count_margins(report),
        script=ScriptData(
            run=run_key(report),
            name=name,
            version=__version__,
            classes=classes,
            suspects=shown,
            references=compared,
            total=suspects,
            files=images.files,
            guard=guard,
            groupColumn=None if summary.groups is None else summary.groups.column,
        ),
        headline=" ".join(filter(None, sentences)),
        min_probability=min_probability,
        unlikely=flagged - suspects,
        run=shlex.quote(run),
        earlier=_earlier(report, [row for row in decided.tolist() if row in images.shown], images.shown),
        decided=len(decided),
        on_page=_on_page(on_page, suspects, flagged, min_probability, vague=vague),
        corrected=corrected,
    )


def _on_page(shown: int, suspects: int, flagged: int, min_probability: float, *, vague: bool) -> str:
    """Return which of the flagged rows the page shows, where it is not all of them."""
    if not flagged or shown == suspects == flagged:
        return ""
    which = f"{suspects:,} of the flagged labels" + ("" if vague else f", wrong with at least {min_probability:.0%},")
    rest = "are on this page" if shown == suspects else f"are suspects; the first {shown:,} are on this page"
    return f"{which} {rest}; the chart of confusions counts these."


def _earlier(report: Report, rows: list[int], images: dict[int, bytes | None]) -> list[EarlierDecision]:
    columns = ("row", "path", "id", "label", "decided_label", "decided_by", "decided_at")
    table = report.take(np.array(rows, dtype=np.int64), *columns)
    return [
        EarlierDecision(
            name=row["path"] or row["id"],
            given=row["label"],
            decided=row["decided_label"],
            by=row["decided_by"] or "",
            at=(row["decided_at"] or "")[:10],
            image=_data_url(images[row["row"]]),
        )
        for row in table.to_pylist()
    ]


def _texts(report: Report, rows: Ints) -> list[str]:
    """Return the user's own columns of some rows as lines of text."""
    known = {*COLUMNS, "split", "true_label", DECIDED_COLUMN}  # nobody is shown the answer
    own = [name for name in report.column_names if name not in known]
    part = report.take(rows, *own).to_pylist() if own else [{}] * len(rows)
    lines = [[f"{name}: {value}" for name, value in row.items() if value not in (None, "")] for row in part]
    return ["\n".join(line)[:LONGEST_TEXT] for line in lines]


def _data_url(image: bytes | None) -> str | None:
    return None if image is None else "data:image/webp;base64," + base64.b64encode(image).decode()


def run_key(report: Report) -> str:
    """Return a short key of a run: the page stores its decisions in the browser under this key."""
    return digest({"data": report.facts.fingerprint, "settings": report.facts.settings})[:16]


def _suspects(
    report: Report,
    rows: Ints,
    images: dict[int, bytes | None],
    references: References,
    classes: list[str],
    sample: int,
) -> list[ShownSuspect]:
    number = {label: i for i, label in enumerate(classes)}
    columns = ["row", "id", "path", "sha256", "label", "suggested_label", "margin", "corruption_probability"]
    columns += ["rank", "label_probability"]
    table = report.take(rows, *columns, "top_labels", "top_probabilities")
    texts, vague = _texts(report, rows), report.summary.estimated_noise_rate.is_vague
    groups = group_values(report, rows)
    return [
        ShownSuspect(
            id=row["id"],
            path=row["path"],
            sha256=row["sha256"],
            given=number[row["label"]],
            suggested=None if row["suggested_label"] is None else number[row["suggested_label"]],
            margin=round(row["margin"], 4),
            rank=row["rank"],
            givenProbability=round(row["label_probability"], 4),
            near=references.near.get(row["row"], ([], [])),
            order=references.order.get(row["row"], place),
            group=groups[place],
            chance=None if vague else round(row["corruption_probability"], 4),
            top=[
                (number[label], round(chance, 4))
                for label, chance in zip(row["top_labels"][:SHOWN_TOP], row["top_probabilities"], strict=False)
            ],
            image=_data_url(images.get(row["row"])),
            text="" if images.get(row["row"]) is not None else texts[place],
            sample=place < sample,
        )
        for place, row in enumerate(table.to_pylist())
    ]
