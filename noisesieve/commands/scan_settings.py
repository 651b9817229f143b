"""The settings of a scan. Options, defaults, bounds and help are declared by the fields of settings, once.

None means: chosen from the data and the machine.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from noisesieve.core.files import Document
from noisesieve.core.options import DATA, OUTPUT, TRAINING, Settings, build_settings, option, parse_names
from noisesieve.decisions.decision_settings import decisions_option
from noisesieve.learn.training_settings import TrainingOptions, deterministic_option, device_option
from noisesieve.pixels.pixel_settings import PixelSettings
from noisesieve.report.report_settings import group_by_option, min_probability_option, waivers_option
from noisesieve.sources.source_settings import SourceSettings, embeddings_option

METHOD = 2  # raised whenever the same data and settings give another report: a run of another method is another run
LATER_OPTIONS = ("scale_batch", "compare_heads")  # of a training, which runs of earlier versions do not name
NOTHING_TOGETHER = "none"  # of --keep-together: not even near-identical images


@dataclass(frozen=True)
class ScanSettings(Settings):
    """One `noisesieve scan`."""

    source: SourceSettings
    embeddings: Path | None = embeddings_option("Your own embeddings instead of images")
    predictions: Path | None = option(
        None, "Your own out-of-sample class probabilities, as files of --embeddings: no training.", DATA, metavar="FILE"
    )
    classes: tuple[str, ...] = option(
        (), "Classes in the order of the columns of --predictions.", DATA, parse=parse_names, metavar="NAMES"
    )
    output: Path | None = option(
        None, "Run folder. Default: noisesieve-runs/<name>.", OUTPUT, flags=("--output", "-o"), metavar="FOLDER"
    )
    review: bool = option(True, "Write review.html into the run folder.", OUTPUT, flags=("--review/--no-review",))
    probabilities: str = option(
        "auto", "Write probabilities.parquet; auto: unless it is large.", OUTPUT, choices=("auto", "all", "none")
    )
    force: bool = option(False, "Replace another run in the same folder.", OUTPUT)
    min_probability: float = min_probability_option()
    group_by: str | None = group_by_option(OUTPUT)
    keep_together: str | None = option(
        None,
        "Column whose equal values (patient, video, product) stay in one fold; none: not even near-identical images.",
        TRAINING,
        metavar="COLUMN",
    )
    decisions: tuple[Path, ...] = decisions_option("Learn from people's decisions")
    waivers: Path = waivers_option()
    training: TrainingOptions = field(default_factory=TrainingOptions)
    device: str = device_option()
    deterministic: bool = deterministic_option()
    pixels: PixelSettings = field(default_factory=PixelSettings)

    @property
    def has_vectors(self) -> bool:
        """True if rows have embeddings or predictions, and need no image."""
        return self.embeddings is not None or self.predictions is not None

    def identity(self) -> Document:
        """Return the settings that change the report. A run is recognised by these, by its recipe and by its data."""
        options = asdict(self.training)
        for name in LATER_OPTIONS:  # left alone they change nothing: earlier runs are still recognised
            if options[name] == getattr(TrainingOptions, name):
                del options[name]
        if (weights := self.training.weights) is not None:
            # A file without its folder; the recipe has its hash.
            options["weights"] = weights if weights.startswith("timm/") else Path(weights).name
        return {
            "method": METHOD,
            "source": self.source.identity(),
            "max_pixels": self.pixels.max_pixels,
            "training": options,
            "probabilities": self.probabilities,
            "keep_together": self.keep_together,
            **({"deterministic": True} if self.deterministic else {}),
        }


def scan_settings(path: str | Path, **options: object) -> ScanSettings:
    """Return the settings of a scan from flat options such as `epochs=20`."""
    return build_settings(ScanSettings, {"path": path, "limit_seed": options.get("seed", 0), **options})
