"""Render the page: template, style and script in one file. Text of the dataset is never interpreted as code."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from noisesieve.review.charts import Histogram
from noisesieve.review.page_data import PageData

CLASSES_SHOWN = 12
MORE_CLASSES = 40  # behind "more classes": every row costs the browser some nodes
SCRIPTS = ("store.js", "gallery.js", "compare.js", "sheet.js", "page.js")  # one scope, in this order


def render_page(page: PageData) -> str:
    """Return one HTML document. Its content policy allows only its own script and style, and no requests."""
    environment = Environment(
        autoescape=True, loader=FunctionLoader(_asset), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = _asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in SCRIPTS) + "})();"
    return environment.get_template("page.html").render(
        page=page,
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; img-src data:{page.image_sources}; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'",
        data=inert_json(asdict(page.script)),
        bars=_bars(page.histogram),
        first_classes=page.classes[:CLASSES_SHOWN],
        more_classes=page.classes[CLASSES_SHOWN:],
        most_classes=MORE_CLASSES,
        numbers={label: number for number, label in enumerate(page.script.classes)},
    )


def inert_json(document: Any) -> Markup:
    """Return JSON that an HTML parser cannot mistake for a tag, a comment or the end of the script."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _asset(name: str) -> str:
    return files("noisesieve.review").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@dataclass(frozen=True)
class Bar:
    """A bar of the histogram, in percent of the chart."""

    x: float
    width: float
    foot: float
    height: float
    kind: str
    rows: int
    low: float  # margins of the bar
    high: float


def _bars(histogram: Histogram) -> list[Bar]:
    """Return the stacked bars of the histogram; heights are square roots of counts."""
    columns = list(zip(histogram.clean, histogram.corrupted, strict=True))
    tallest = max((math.sqrt(clean + suspect) for clean, suspect in columns), default=0.0) or 1.0
    width = 100 / max(1, len(columns))
    bars = []
    span = (histogram.high - histogram.low) / max(1, len(columns))
    for i, counts in enumerate(columns):
        low = histogram.low + i * span
        foot = 0.0
        for kind, rows in zip(("clean", "corrupted"), counts, strict=True):
            if rows:  # the height of the pair is a square root, divided in proportion to the counts
                height = 100 * math.sqrt(sum(counts)) / tallest * rows / sum(counts)
                bars.append(
                    Bar(
                        i * width,
                        width * 0.9,
                        foot,
                        height,
                        kind,
                        rows,
                        low,
                        low + span if i + 1 < len(columns) else 1e9,
                    )
                )
                foot += height
    return bars
