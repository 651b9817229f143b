"""The chart of an evaluation: margins of right and wrong labels (the paper's Figure 3), precision against recall."""

from __future__ import annotations

from xml.sax.saxutils import escape

import numpy as np

from noisesieve.core.records import Bools, Floats
from noisesieve.measure.evaluation import EvaluatedRows
from noisesieve.measure.metrics import detection, precision_recall_curve

WIDTH, HEIGHT = 960, 420
PANEL = 380  # width of a plot in pixels
TOP, BOTTOM = 70, 350
LEFT = (70, 545)  # left edges of the two plots
BINS = 60
POINTS = 400  # of the curve, at most
RIGHT_COLOUR, WRONG_COLOUR = "#4477aa", "#cc6677"  # distinguishable with every kind of colour vision


def chart_start(width: int, height: int, label: str) -> str:
    """Return the beginning of an SVG chart, in the style of all our charts."""
    style = (
        "text{font:13px system-ui,sans-serif;fill:#222}.small{font-size:11px;fill:#555}.title{font-size:15px;"
        "font-weight:600}.axis{stroke:#999;fill:none}.grid{stroke:#e5e5e5}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{label}"><style>{style}</style><rect width="{width}" height="{height}" fill="#fff"/>'
    )


def draw_evaluation(rows: EvaluatedRows, title: str) -> str:
    """Return an SVG document."""
    return "\n".join(
        [
            chart_start(WIDTH, HEIGHT, "Margins and precision-recall curve"),
            f'<text class="title" x="{LEFT[0]}" y="28">{escape(title)}</text>',
            *_histograms(rows.margin, rows.wrong),
            *_curve(rows),
            "</svg>\n",
        ]
    )


def _histograms(margin: Floats, wrong: Bools) -> list[str]:
    """Draw the histograms of margins of right and of wrong labels; zero is the threshold."""
    low, high = (float(margin.min()), float(margin.max())) if len(margin) else (-1.0, 1.0)
    low, high = min(low, -0.05), max(high, 0.05)
    edges = np.linspace(low, high, BINS + 1)
    counts = [np.histogram(margin[kind], edges)[0] for kind in (~wrong, wrong)]
    tallest = max(1, *(int(count.max()) for count in counts))
    x0, step = LEFT[0], PANEL / BINS
    parts = [f'<text x="{x0}" y="54">margins (zero or above: corrupted), square-root scale</text>']
    for count, colour in zip(counts, (RIGHT_COLOUR, WRONG_COLOUR), strict=True):
        # On a square-root scale a few hundred wrong labels are visible beside thousands of right ones.
        heights = np.sqrt(count / tallest) * (BOTTOM - TOP)
        parts += [
            f'<rect x="{x0 + i * step:.1f}" y="{BOTTOM - h:.1f}" width="{step:.1f}" height="{h:.1f}" '
            f'fill="{colour}" fill-opacity="0.6"/>'
            for i, h in enumerate(heights)
            if h > 0
        ]
    zero = x0 + (0 - low) / (high - low) * PANEL
    parts += [
        f'<path class="axis" d="M{x0} {TOP}V{BOTTOM}H{x0 + PANEL}"/>',
        f'<path d="M{zero:.1f} {TOP}V{BOTTOM}" stroke="#222" stroke-dasharray="4 3"/>',
        f'<text class="small" text-anchor="middle" x="{zero:.1f}" y="{BOTTOM + 18}">0</text>',
        f'<text class="small" x="{x0}" y="{BOTTOM + 18}">{low:.1f}</text>',
        f'<text class="small" text-anchor="end" x="{x0 + PANEL}" y="{BOTTOM + 18}">{high:.1f}</text>',
    ]
    for fraction in (0.25, 1.0):
        y = BOTTOM - fraction**0.5 * (BOTTOM - TOP)
        parts.append(
            f'<text class="small" text-anchor="end" x="{x0 - 6}" y="{y + 4:.1f}">{round(tallest * fraction):,}</text>'
        )
    names = (f"{int((~wrong).sum()):,} right labels", f"{int(wrong.sum()):,} wrong labels")
    for i, (name, colour) in enumerate(zip(names, (RIGHT_COLOUR, WRONG_COLOUR), strict=True)):
        parts.append(f'<rect x="{x0 + i * 170}" y="{BOTTOM + 34}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x0 + i * 170 + 18}" y="{BOTTOM + 45}">{name}</text>')
    return parts


def _curve(rows: EvaluatedRows) -> list[str]:
    """Draw precision against recall along the ranking, and the point of the verdict."""
    precision, recall = precision_recall_curve(rows.suspicion, rows.wrong)
    keep = np.unique(np.linspace(0, len(recall) - 1, min(len(recall), POINTS)).astype(np.int64))
    x0, height = LEFT[1], BOTTOM - TOP

    def point(r: float, p: float) -> tuple[float, float]:
        return x0 + r * PANEL, BOTTOM - p * height

    parts = [f'<text x="{x0}" y="54">precision against recall, along the ranking</text>']
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = point(tick, tick)
        parts += [
            f'<path class="grid" d="M{x0} {y:.1f}H{x0 + PANEL}M{x:.1f} {TOP}V{BOTTOM}"/>',
            f'<text class="small" text-anchor="end" x="{x0 - 6}" y="{y + 4:.1f}">{tick:g}</text>',
            f'<text class="small" text-anchor="middle" x="{x:.1f}" y="{BOTTOM + 18}">{tick:g}</text>',
        ]
    path = "L".join("{:.1f} {:.1f}".format(*point(r, p)) for r, p in zip(recall[keep], precision[keep], strict=True))
    parts.append(f'<path class="axis" d="M{x0} {TOP}V{BOTTOM}H{x0 + PANEL}"/>')
    parts.append(f'<path d="M{path}" fill="none" stroke="{WRONG_COLOUR}" stroke-width="2"/>')
    verdict = detection(rows.flagged, rows.wrong)
    if verdict.precision is not None and verdict.recall is not None:
        x, y = point(verdict.recall, verdict.precision)
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="#222"/>',
            f'<circle cx="{x0 + 6}" cy="{BOTTOM + 40}" r="5" fill="#222"/>',
            f'<text x="{x0 + 18}" y="{BOTTOM + 45}">the verdict: precision {verdict.precision:.3f}, '
            f"recall {verdict.recall:.3f}</text>",
        ]
    return parts
