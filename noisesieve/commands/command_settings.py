"""The settings of the commands other than scan, as frozen dataclasses with their options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from noisesieve.commands.measure_settings import TestSettings
from noisesieve.core.errors import UsageError
from noisesieve.core.options import (
    DATA,
    GATE,
    MACHINE,
    NETWORK,
    OUTPUT,
    REQUIRED,
    TRAINING,
    Settings,
    option,
    parse_age,
    parse_names,
    replace_output_option,
)
from noisesieve.decisions.decision_settings import decisions_option
from noisesieve.gate.policy_settings import Policy
from noisesieve.learn.training_settings import deterministic_option, device_option
from noisesieve.pixels.pixel_settings import PixelSettings
from noisesieve.report.report_settings import (
    MIN_PROBABILITY,
    WAIVERS,
    group_by_option,
    min_probability_option,
    waivers_option,
)
from noisesieve.retrain.retrain_settings import RetrainOptions
from noisesieve.sources.source_settings import MovedData, SourceSettings, embeddings_option

_SHARE = {"minimum": 0.0, "maximum": 1.0}


@dataclass(frozen=True)
class RetrainSettings(Settings):
    """One `noisesieve retrain`."""

    run: Path
    output: Path | None = option(
        None, "Folder for the new model. Default: RUN-retrained.", OUTPUT, flags=("--output", "-o"), metavar="FOLDER"
    )
    force: bool = option(False, "Replace another run in the same folder.", OUTPUT)
    test: TestSettings = field(default_factory=TestSettings)
    candidates: tuple[str, ...] = option(
        (),
        "Trainings of a network to compare, with commas: all, kept, suggestions, consistency. One alone is trained on "
        "all rows and compared with none. Default: the four.",
        TRAINING,
        parse=parse_names,
        choices=("all", "kept", "suggestions", "consistency"),
        metavar="NAMES",
    )
    decisions: tuple[Path, ...] = decisions_option("Labels that people decided on count as clean")
    moved: MovedData = field(default_factory=MovedData)
    freeze: bool | None = option(
        None,
        "Train heads on the run's stored features, or the whole network. Default: heads, if frozen and without a GPU.",
        TRAINING,
        flags=("--freeze/--no-freeze",),
    )
    training: RetrainOptions = field(default_factory=RetrainOptions)
    device: str = device_option()
    deterministic: bool = deterministic_option()
    pixels: PixelSettings = field(default_factory=PixelSettings)


@dataclass(frozen=True)
class ReviewSettings(Settings):
    """One `noisesieve review`."""

    output: Path | None = option(
        None, "Path of the page. Default: review.html in the run folder.", OUTPUT, flags=("--output", "-o")
    )
    limit: int = option(500, "Number of suspects on the page, the most suspicious first.", OUTPUT, minimum=1)
    probe: int = option(
        0, "Put a random sample of this many rows first, flagged or not: it measures the run.", OUTPUT, metavar="N"
    )
    guard: bool = option(
        False, "Hide two clean images of other classes in every tenth sheet, and count those that are caught.", OUTPUT
    )
    probe_seed: int = option(0, "Seed of the random sample.", OUTPUT, minimum=0, maximum=2**63 - 1)
    min_probability: float = min_probability_option()
    force: bool = replace_output_option()
    moved: MovedData = field(default_factory=MovedData)


def _export_formats() -> Iterable[str]:
    from noisesieve.exports.formats import EXPORTS

    return EXPORTS


@dataclass(frozen=True)
class ExportSettings(Settings):
    """One `noisesieve export`."""

    to: str = option(
        REQUIRED,
        "Format.",
        OUTPUT,
        choices=_export_formats,
        metavar="FORMAT",
    )
    output: Path | None = option(
        None, "File or folder to write. Default: in the run folder.", OUTPUT, flags=("--output", "-o")
    )
    only: str = option(
        "corrupted", "Which rows; clean is the filtered training set.", DATA, choices=("corrupted", "clean", "all")
    )
    top: int | None = option(None, "Only this many rows, the most suspicious.", DATA, minimum=1)
    min_probability: float | None = option(
        None,
        f"Only rows that are wrong with at least this probability. Default: {MIN_PROBABILITY:g} for flagged rows.",
        DATA,
        metavar="P",
        shared=True,
        **_SHARE,
    )
    files: str = option("link", "huggingface and folder: how to write the images.", OUTPUT, choices=("link", "copy"))
    image_prefix: str | None = option(
        None, "label-studio: prefix of every image's path. Default: Label Studio's own disk.", OUTPUT, metavar="TEXT"
    )
    force: bool = replace_output_option()
    moved: MovedData = field(default_factory=MovedData)


@dataclass(frozen=True)
class ApplySettings(Settings):
    """One `noisesieve apply`."""

    decisions: tuple[Path, ...]
    output: Path = option(REQUIRED, "The corrected table (or folder, with --tree).", OUTPUT, flags=("--output", "-o"))
    tree: str | None = option(
        None, "For an image folder: write an image folder, by copy or link.", OUTPUT, choices=("copy", "link")
    )
    force: bool = replace_output_option()
    accept_above: float | None = option(
        None,
        "Also accept suggestions for labels that are wrong with at least this probability.",
        DATA,
        metavar="P",
        **_SHARE,
    )
    new_classes: bool = option(False, "Accept labels that are not classes of the run.", DATA)
    waive_kept: bool = option(False, "Remember kept labels as waivers, not in the new dataset.", DATA)
    waivers: Path = waivers_option()
    moved: MovedData = field(default_factory=MovedData)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.decisions and self.accept_above is None:
            raise UsageError("No decisions.", "Give a file of decisions, or pass --accept-above 0.95.")


@dataclass(frozen=True)
class CheckSettings(Settings):
    """One `noisesieve check`."""

    source: SourceSettings
    model: Path = option(REQUIRED, "The run folder of a finished scan.", DATA, metavar="RUN")
    embeddings: Path | None = embeddings_option("Embeddings of the batch, for a run that was scanned from embeddings")
    policy: Policy = field(default_factory=Policy)
    group_by: str | None = group_by_option(GATE)
    # A batch's probabilities assume the noise rate of the scan. After a clean scan they are too low for a bad batch.
    min_probability: float = min_probability_option(0.0)
    waivers: Path = waivers_option()
    output: Path | None = option(
        None, "Write the batch's report (.parquet).", OUTPUT, flags=("--output", "-o"), metavar="FILE"
    )
    force: bool = replace_output_option()
    weights: str | None = option(
        None,
        "The model's frozen backbone: its file, if it was moved, or its name, to download it.",
        NETWORK,
        metavar="NAME|FILE",
    )
    device: str = device_option()
    pixels: PixelSettings = field(default_factory=PixelSettings)


@dataclass(frozen=True)
class DoctorSettings(Settings):
    """One `noisesieve doctor`."""

    source: SourceSettings
    device: str = device_option()
    pixels: PixelSettings = field(default_factory=PixelSettings)


@dataclass(frozen=True)
class WaiveSettings(Settings):
    """One `noisesieve waive`."""

    reason: str = option("", "Why the label is right. With --decisions: who kept it, and when.", DATA)
    decisions: tuple[Path, ...] = decisions_option("Waive the rows that were kept in")
    file: Path = option(WAIVERS, "The file of waivers; commit it.", OUTPUT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.reason.strip() and not self.decisions:
            raise UsageError("--reason is missing.", "Say why the label is right: others will read it.")


@dataclass(frozen=True)
class CacheSettings(Settings):
    """One `noisesieve cache`."""

    clear: bool = option(False, "Remove all entries.", DATA)
    older_than: float | None = option(
        None, "With --clear: only entries unused for 30d, 12h or 90m.", DATA, parse=parse_age, metavar="AGE"
    )
    cache_dir: Path | None = option(
        None, "Folder of the cache. Default: the user's cache folder.", MACHINE, shared=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.older_than is not None and not self.clear:
            raise UsageError("--older-than is for --clear.", "Add --clear, or leave it out.")


@dataclass(frozen=True)
class ExplainSettings(Settings):
    """One `noisesieve explain`."""

    moved: MovedData = field(default_factory=MovedData)
