"""The figures of `bench` and `bench --ablation`, as records, JSON, table cells and Markdown."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from noisesieve.bench.methods import MethodResult
from noisesieve.core.documents import from_json
from noisesieve.core.files import Document, Json
from noisesieve.core.records import Bools
from noisesieve.learn.recipes import Recipe, recipe_from_document, recipe_to_document
from noisesieve.measure.bootstrap import Difference, f1_difference, precision_difference
from noisesieve.measure.metrics import area_under_roc, average_precision, calibration, detection

SCHEMA_VERSION = 2  # of the JSON documents of `bench`
OURS = "noisesieve"
HEADINGS = ("method", "flagged", "precision", "recall", "F1", "AP", "AUC", "seconds", "passes")
ABLATION_HEADINGS = ("method", "accuracy", "clean rows", "seconds", "passes")


@dataclass(frozen=True)
class MethodFigures:
    """The figures of one method on the rows whose right label is known."""

    method: str
    flagged: int
    precision: float | None
    recall: float | None
    f1: float | None
    average_precision: float | None
    auc: float | None
    seconds: float
    passes: float
    ece: float | None
    noise_rate_error: float | None
    f1_shown: float | None = None  # of flagged rows with P(wrong) >= MIN_PROBABILITY, as page and export show them
    shown_right: float | None = None  # share of all rows that are shown and right
    precision_lead: Difference | None = None  # noisesieve less this method: average precision
    f1_lead: Difference | None = None  # and F1, of what noisesieve shows

    @classmethod
    def of_result(cls, method: str, result: MethodResult, known: Bools, wrong: Bools) -> MethodFigures:
        """Measure the result of a method."""
        suspicion, hits = result.suspicion[known], detection(result.flagged[known], wrong)
        probability, shown = None if result.probability is None else result.probability[known], result.shown[known]
        return cls(
            method=method,
            flagged=hits.flagged,
            precision=hits.precision,
            recall=hits.recall,
            f1=hits.f1,
            average_precision=average_precision(suspicion, wrong),
            auc=area_under_roc(suspicion, wrong),
            seconds=result.seconds,
            passes=result.passes,
            ece=None if probability is None else calibration(probability, wrong).ece,
            noise_rate_error=None if probability is None else float(probability.mean() - wrong.mean()),
            f1_shown=detection(shown, wrong).f1,
            shown_right=float((shown & ~wrong).mean()),
        )

    def cells(self) -> list[str]:
        """Return the figures as text, in the order of HEADINGS."""
        shares = (self.precision, self.recall, self.f1, self.average_precision, self.auc)
        seconds = f"{self.seconds:.0f}" if self.seconds >= 10 else f"{self.seconds:.1f}"
        return [self.method, f"{self.flagged:,}", *map(_share, shares), seconds, f"{self.passes:.1f}"]


def figures_of(results: dict[str, MethodResult], known: Bools, wrong: Bools) -> list[MethodFigures]:
    """Measure the results of all methods, with the lead of noisesieve over each other one, if it is among them."""
    figures = [MethodFigures.of_result(name, result, known, wrong) for name, result in results.items()]
    ours = results.get(OURS)
    if ours is None:
        return figures
    return [
        row
        if row.method == OURS
        else replace(
            row,
            precision_lead=precision_difference(ours.suspicion[known], results[row.method].suspicion[known], wrong),
            f1_lead=f1_difference(ours.shown[known], results[row.method].shown[known], wrong),
        )
        for row in figures
    ]


@dataclass(frozen=True)
class AblationFigures:
    """The test accuracy of one training of the ablation."""

    method: str
    accuracy: float
    clean_rows: int
    seconds: float
    passes: float

    def cells(self) -> list[str]:
        """Return the figures as text, in the order of ABLATION_HEADINGS."""
        return [
            *(self.method, f"{self.accuracy:.3f}", f"{self.clean_rows:,}"),
            *(f"{self.seconds:.0f}", f"{self.passes:.1f}"),
        ]


@dataclass(frozen=True)
class Machine:
    """The hardware and versions that figures were measured with."""

    processor: str
    threads: int
    device: str
    torch: str
    python: str


@dataclass(frozen=True)
class BenchTable:
    """The figures of every method on one dataset."""

    version: str
    dataset: str
    examples: int
    measured: int
    classes: int
    wrong: int
    label_column: str | None
    seed: int
    recipe: Recipe
    warmup_epochs: int
    flip: bool
    machine: Machine
    methods: list[MethodFigures]
    headings = HEADINGS

    @classmethod
    def from_document(cls, document: Json) -> BenchTable:
        """Undo `to_document`."""
        parts = {name: value for name, value in document.items() if name != "schema_version"}
        parts["recipe"] = recipe_from_document(document["recipe"])
        parts["machine"] = Machine(**document["machine"])
        parts["methods"] = [from_json(MethodFigures, row) for row in document["methods"]]
        return cls(**parts)

    @property
    def what(self) -> str:
        """The dataset in a few words."""
        return f"{self.classes} classes, {self.wrong / self.measured:.1%} wrong labels"

    @property
    def headline(self) -> str:
        """The result's first line."""
        share = self.wrong / self.measured
        return f"{self.wrong:,} of {self.measured:,} labels are wrong: {share:.1%}"


@dataclass(frozen=True)
class AblationTable:
    """The test accuracy of the five trainings of the paper's ablation."""

    version: str
    dataset: str
    examples: int
    test_rows: int
    classes: int
    seed: int
    recipe: Recipe
    machine: Machine
    methods: list[AblationFigures]
    headings = ABLATION_HEADINGS

    @property
    def what(self) -> str:
        """The dataset in a few words."""
        return f"{self.test_rows:,} test images"

    @property
    def headline(self) -> str:
        """The result's first line."""
        return f"accuracy on {self.test_rows:,} test images"


def to_document(table: BenchTable | AblationTable) -> Document:
    """Return the JSON document of a table."""
    return {"schema_version": SCHEMA_VERSION, **asdict(table), "recipe": recipe_to_document(table.recipe)}


def this_machine(device: torch.device) -> Machine:
    """Return the hardware and versions of this machine."""
    return Machine(_processor(), torch.get_num_threads(), device.type, torch.__version__, platform.python_version())


def _processor() -> str:
    """Return the name of the processor, as far as the system provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def as_markdown(table: BenchTable | AblationTable) -> str:
    """Return the table for a README, below a line with dataset and hardware."""
    machine, recipe = table.machine, table.recipe
    lines = [
        f"{table.dataset}: {table.examples:,} images, {table.what}, seed {table.seed}; "
        f"{recipe.backbone} at {recipe.image_size} px; "
        f"{machine.processor}, {machine.threads} thread{'s' * (machine.threads != 1)}, "
        f"{machine.device}, torch {machine.torch}, noisesieve {table.version}.",
        "",
        f"| {' | '.join(table.headings)} |",
        f"|---|{'---:|' * (len(table.headings) - 1)}",
        *(f"| {' | '.join(row.cells())} |" for row in table.methods),
    ]
    return "\n".join(lines) + "\n"
