"""The settings of the commands that measure: bench, evaluate, inject, and the test set of retrain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.errors import UsageError
from noisesieve.core.options import (
    DATA,
    NETWORK,
    OUTPUT,
    REQUIRED,
    Settings,
    option,
    parse_names,
    parse_share,
    replace_output_option,
)
from noisesieve.decisions.decision_settings import decisions_option
from noisesieve.measure.truth_settings import TruthSettings
from noisesieve.pixels.pixel_settings import PixelSettings
from noisesieve.sources.source_settings import NOT_MOVED, MovedData, SourceSettings


@dataclass(frozen=True)
class InjectSettings(Settings):
    """One `noisesieve inject`."""

    source: SourceSettings
    output: Path = option(
        REQUIRED,
        "The table to write: .csv, .tsv, .jsonl or .parquet.",
        OUTPUT,
        flags=("--output", "-o"),
        metavar="TABLE",
    )
    noise: str = option(
        REQUIRED,
        "Kind of noise. instance: the paper's Algorithm 1 on standardized pixels; instance-raw: on bytes, as its code.",
        DATA,
        choices=("symmetric", "asymmetric", "instance", "instance-raw"),
    )
    rate: float = option(
        REQUIRED,
        "Share of labels to flip: 0.2, or 20%.",
        DATA,
        above=0.0,
        maximum=1.0,
        parse=parse_share,
        metavar="SHARE",
    )
    seed: int = option(0, "Seed of the flips.", DATA, minimum=0, maximum=2**63 - 1)
    pixels: PixelSettings = field(default_factory=PixelSettings)
    force: bool = replace_output_option()


@dataclass(frozen=True)
class TestSettings(Settings):
    """A test set: a dataset with right labels that is never trained on."""

    __test__ = False  # not a test class of pytest

    test: Path | None = option(None, "Dataset with right labels, never trained on, to measure accuracy.", DATA)
    test_label_column: str = option("label", "Column with the test set's labels.", DATA)
    test_root: Path | None = option(None, "Folder that the test table's paths start from.", DATA)
    test_split: str | None = option(None, "Use one split of the test set only, such as test.", DATA)

    @property
    def source(self) -> SourceSettings | None:
        """The source of the test set, or None."""
        if self.test is None:
            return None
        return SourceSettings(self.test, self.test_root, label_column=self.test_label_column, split=self.test_split)


def _methods() -> Iterable[str]:
    from noisesieve.bench.methods import METHODS  # not before it is needed: it loads torch

    return METHODS


@dataclass(frozen=True)
class BenchSettings(Settings):
    """One `noisesieve bench`."""

    scan: ScanSettings
    methods: tuple[str, ...] = option(
        (), "What to compare, with commas. Default: all.", NETWORK, parse=parse_names, choices=_methods, metavar="NAMES"
    )
    truth: TruthSettings = field(default_factory=TruthSettings)


@dataclass(frozen=True)
class EvaluateSettings(Settings):
    """One `noisesieve evaluate`."""

    truth: TruthSettings = field(default_factory=TruthSettings)
    plant: float | None = option(
        None,
        "Without right labels: flip this share of the rows, scan again, measure.",
        DATA,
        parse=parse_share,
        metavar="SHARE",
    )
    decisions: tuple[Path, ...] = decisions_option("Measure by people's decisions")
    update: bool = option(False, "With --decisions: correct the run's probabilities by them.", OUTPUT)
    seed: int = option(0, "With --plant: seed of the flips.", DATA, minimum=0, maximum=2**63 - 1)
    moved: MovedData = field(default_factory=MovedData)
    picture: Path | None = option(
        None, "Path of the chart. Default: evaluation.svg in the run folder.", OUTPUT, metavar="FILE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.picture is not None and self.picture.suffix.lower() != ".svg":
            raise UsageError(f"--picture {self.picture}: the chart is an SVG.", "Choose a name that ends in .svg.")
        if self.update and (not self.decisions or self.plant is not None):
            raise UsageError("--update: corrects probabilities by decisions.", "Give them with --decisions.")
        if self.decisions and (self.truth.truth is not None or self.truth.truth_column is not None):
            raise UsageError("--decisions are the truth here.", "Leave --truth and --truth-column out.")
        if self.decisions and self.plant is not None:
            raise UsageError("--plant and --decisions measure in two ways.", "Run one after the other.")
        if self.decisions and self.picture is not None:
            raise UsageError("--decisions draws no chart.", "Leave --picture out.")
        if self.plant is None:
            if self.moved != NOT_MOVED and not self.update:
                raise UsageError("--data and --root are only for --plant and --update.", "Leave them out.")
            return
        if self.truth.truth is not None or self.truth.truth_column is not None:
            raise UsageError(
                "--plant measures without right labels.", "Leave --truth and --truth-column out, or --plant."
            )
        if self.picture is not None:
            raise UsageError("--plant draws no chart.", "Leave --picture out.")
