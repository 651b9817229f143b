"""The data of the review page: the run in a few numbers, and its suspects, most suspicious first."""

from __future__ import annotations

import base64
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from noisesieve import __version__
from noisesieve.core.files import Json, digest
from noisesieve.core.records import Ints
from noisesieve.core.summary import ClassRate, Summary
from noisesieve.core.text import natural_key
from noisesieve.report import Report

SHOWN_TOP = 3
HEAT_CLASSES = 16  # classes in the heat map; more would be unreadable
HEAT_STEPS = 6
BINS = 48


@dataclass(frozen=True)
class PageData:
    """Everything the template needs. `data` is embedded as JSON for the script; the rest is static."""

    title: str
    summary: Summary
    classes: list[ClassRate]  # noisiest first
    heat: Json
    histogram: Json
    data: Json


def choose_rows(report: Report, limit: int) -> Ints:
    """Return the rows that the page shows: the first `limit` suspects."""
    rows: Ints = report.corrupted["row"].slice(0, limit).to_numpy()
    return rows


def build_page_data(report: Report, rows: Ints, images: list[bytes | None]) -> PageData:
    """Return the page data of a report and of the images of some of its rows."""
    summary = report.summary
    classes: list[str] = report.facts.classes
    name = report.path.parent.resolve().name
    shown = _suspects(report, rows, images, classes)
    return PageData(
        title=name,
        summary=summary,
        classes=sorted(summary.classes, key=lambda row: (-(row.share or 0.0), natural_key(row.label))),
        heat=_heat(report, classes),
        histogram=_histogram(report),
        data={
            "run": run_key(report),
            "name": name,
            "version": __version__,
            "classes": classes,
            "suspects": shown,
            "total": summary.corrupted,
        },
    )


def run_key(report: Report) -> str:
    """Return a short key of a run: the page stores its decisions in the browser under this key."""
    return digest({"data": report.facts.fingerprint, "settings": report.facts.settings})[:16]


def _suspects(report: Report, rows: Ints, images: list[bytes | None], classes: list[str]) -> list[Json]:
    number = {label: i for i, label in enumerate(classes)}
    columns = ["id", "path", "sha256", "label", "suggested_label", "margin", "corruption_probability"]
    table = report.table.take(pa.array(rows)).select([*columns, "top_labels", "top_probabilities"])
    return [
        {
            "id": row["id"],
            "path": row["path"],
            "sha256": row["sha256"],
            "given": number[row["label"]],
            "suggested": None if row["suggested_label"] is None else number[row["suggested_label"]],
            "margin": round(row["margin"], 4),
            "chance": round(row["corruption_probability"], 4),
            "top": [
                [number[label], round(chance, 4)]
                for label, chance in zip(row["top_labels"][:SHOWN_TOP], row["top_probabilities"], strict=False)
            ],
            "image": None if image is None else "data:image/webp;base64," + base64.b64encode(image).decode(),
        }
        for row, image in zip(table.to_pylist(), images, strict=True)
    ]


def _heat(report: Report, classes: list[str]) -> Json:
    """Count suspects by given and suggested label, for the classes with most suspects."""
    suspects = report.corrupted
    given, to = suspects["label"].to_pylist(), suspects["suggested_label"].to_pylist()
    pairs = Counter((a, b) for a, b in zip(given, to, strict=True) if b is not None)
    part: Counter[str] = Counter()
    for (a, b), count in pairs.items():
        part[a] += count
        part[b] += count
    taken = sorted((label for label, _ in part.most_common(HEAT_CLASSES)), key=natural_key)
    most = max((pairs[a, b] for a in taken for b in taken), default=0)
    number = {label: i for i, label in enumerate(classes)}
    return {
        "labels": [(number[label], label) for label in taken],
        "rows": [
            [(pairs[a, b], -(-pairs[a, b] * HEAT_STEPS // most) if most and pairs[a, b] else 0) for b in taken]
            for a in taken
        ],
        "left_out": len(part) - len(taken),
    }


def _histogram(report: Report) -> Json:
    """Return the histogram of margins of clean and of corrupted rows; zero is the edge of a bin."""
    margins = report.table["margin"].to_numpy(zero_copy_only=False)
    flagged = report.verdicts == "corrupted"
    known = ~np.isnan(margins)
    margins, flagged = margins[known], flagged[known]
    reach = max(float(np.abs(margins).max(initial=0.0)), 1e-9)
    edges = np.linspace(-reach, reach, BINS + 1)
    return {
        "low": -reach,
        "high": reach,
        "clean": np.histogram(margins[~flagged], edges)[0].tolist(),
        "corrupted": np.histogram(margins[flagged], edges)[0].tolist(),
    }
