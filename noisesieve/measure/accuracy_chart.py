"""The chart of test accuracy over the epochs of several trainings."""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape

from noisesieve.measure.chart import chart_start

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 690, 60, 300
COLOURS = ("#cc6677", "#ddaa33", "#117733", "#4477aa", "#aa4499")  # distinguishable with every kind of colour vision
SCAN_COLOUR = "#222222"


@dataclass(frozen=True)
class ClassAccuracy:
    """The test accuracy of one class: of the scan's own model, and of the saved one."""

    label: str
    of: int
    scan: float
    saved: float


@dataclass(frozen=True)
class AccuracyTable:
    """The test accuracy over the epochs of every training, and per class."""

    test_rows: int
    scan: float  # of the scan's own model
    epochs: dict[str, list[float]]  # by training
    classes: list[ClassAccuracy]


def draw_accuracy(table: AccuracyTable, title: str) -> str:
    """Return an SVG: one curve per training, and the scan's own model as a horizontal line.

    The horizontal axis is the share of the training that is done, since epochs differ in length.
    """
    curves = [(name, colour, curve) for (name, curve), colour in zip(table.epochs.items(), COLOURS, strict=False)]
    values = [value for _, _, curve in curves for value in curve] + [table.scan]
    low = max(0.0, min(values) - 0.05)
    high = min(1.0, max(values) + 0.02)

    def point(share: float, value: float) -> str:
        x = LEFT + share * (RIGHT - LEFT)
        return f"{x:.1f} {BOTTOM - (value - low) / max(1e-9, high - low) * (BOTTOM - TOP):.1f}"

    parts = [
        chart_start(WIDTH, HEIGHT, "Test accuracy over training"),
        f'<text class="title" x="{LEFT}" y="28">{escape(title)}: accuracy on {table.test_rows:,} images</text>',
    ]
    for i in range(5):
        value = low + (high - low) * i / 4
        height = point(0, value).split()[1]
        parts.append(f'<path class="grid" d="M{LEFT} {height}H{RIGHT}"/>')
        parts.append(
            f'<text class="small" text-anchor="end" x="{LEFT - 6}" y="{float(height) + 4:.1f}">{value:.3f}</text>'
        )
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>')
    parts.append(
        f'<text class="small" text-anchor="end" x="{RIGHT}" y="{BOTTOM + 18}">from start to end of training</text>'
    )
    level = point(0, table.scan).split()[1]
    parts.append(f'<path d="M{LEFT} {level}H{RIGHT}" stroke="{SCAN_COLOUR}" stroke-dasharray="5 4"/>')
    for _, colour, curve in curves:
        path = "L".join(point((i + 1) / len(curve), value) for i, value in enumerate(curve))
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    names = [(f"the scan's own model: {table.scan:.3f}", SCAN_COLOUR)]
    names += [(f"{name}: {curve[-1]:.3f}", colour) for name, colour, curve in curves]
    for i, (name, colour) in enumerate(names):
        y = BOTTOM + 26 + 20 * i
        parts.append(f'<rect x="{LEFT}" y="{y}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 18}" y="{y + 11}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])
