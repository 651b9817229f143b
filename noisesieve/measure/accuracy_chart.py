"""The chart of test accuracy over the epochs."""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape

from noisesieve.core.files import Document, Json
from noisesieve.measure.chart import chart_start

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 690, 60, 330
MODELS = ("before", "baseline", "after")  # the sieve's model, plain cross-entropy, the retrained model
AFTER, BASELINE, BEFORE = "#4477aa", "#cc6677", "#222222"  # distinguishable with every kind of colour vision


@dataclass(frozen=True)
class ClassAccuracy:
    """The accuracy of one class, by model: before, after, and baseline if it was trained."""

    label: str
    of: int
    accuracy: dict[str, float]


@dataclass(frozen=True)
class AccuracyTable:
    """The test accuracy of the sieve's model (before), of the retrained one (after) and of the baseline."""

    test_rows: int
    accuracy: dict[str, float]
    after_epochs: list[float]
    baseline_epochs: list[float] | None
    classes: list[ClassAccuracy]

    @property
    def baseline_best(self) -> float | None:
        """The best epoch of the baseline."""
        return None if self.baseline_epochs is None else max(self.baseline_epochs)

    def to_document(self) -> Document:
        """Return the table for retrain.json."""
        return {
            "test_rows": self.test_rows,
            **self.accuracy,
            "after_epochs": self.after_epochs,
            "baseline_epochs": self.baseline_epochs,
            "baseline_best": self.baseline_best,
            "classes": [{"label": row.label, "of": row.of, **row.accuracy} for row in self.classes],
        }

    @classmethod
    def from_document(cls, document: Json) -> AccuracyTable:
        """Undo `to_document`."""
        rows = [ClassAccuracy(row["label"], row["of"], _by_model(row)) for row in document["classes"]]
        epochs = document["after_epochs"], document["baseline_epochs"]
        return cls(document["test_rows"], _by_model(document), *epochs, rows)


def _by_model(document: Json) -> dict[str, float]:
    return {name: document[name] for name in MODELS if name in document}


def draw_accuracy(table: AccuracyTable, title: str) -> str:
    """Return an SVG: retraining, plain cross-entropy if it was trained, and the sieve's model as a horizontal line.

    The horizontal axis is the share of the images trained on, since the epochs of the two differ in length.
    """
    before = table.accuracy["before"]
    curves = [("retrained", AFTER, table.after_epochs)]
    if table.baseline_epochs is not None:
        curves.append(("plain cross-entropy, all rows", BASELINE, table.baseline_epochs))
    values = [value for _, _, curve in curves for value in curve] + [before]
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
    level = point(0, before).split()[1]
    parts.append(f'<path d="M{LEFT} {level}H{RIGHT}" stroke="{BEFORE}" stroke-dasharray="5 4"/>')
    for _, colour, curve in curves:
        path = "L".join(point((i + 1) / len(curve), value) for i, value in enumerate(curve))
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    names = [(f"the sieve's model: {before:.3f}", BEFORE)]
    names += [(f"{name}: {curve[-1]:.3f}", colour) for name, colour, curve in curves]
    for i, (name, colour) in enumerate(names):
        y = BOTTOM + 34 + 20 * i
        parts.append(f'<rect x="{LEFT}" y="{y}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 18}" y="{y + 11}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])
