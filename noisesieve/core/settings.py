"""The settings of a scan, as frozen dataclasses. Options, defaults, bounds and help are declared here, once.

None means: chosen from the data and the machine. The settings of the other commands are in command_settings.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from noisesieve.core.errors import UsageError
from noisesieve.core.files import Document
from noisesieve.core.options import Settings, build_settings, option, parse_bytes, parse_names, parse_paths

DATA, OUTPUT, NETWORK, TRAINING, MACHINE, GATE = "Data", "Output", "Network", "Training", "Machine", "Gate"
KEYWORDS = ("none", "imagenet", "lite0")  # of --weights
WAIVERS = Path(".noisesieve-waivers.csv")  # in the working folder, to be committed
MOST_EPOCHS = 10**6


def outside_option() -> bool:
    """Declare --allow-outside."""
    text = "Accept paths and links that lead out of the dataset's folder."
    declared: bool = option(False, text, DATA, shared=True)
    return declared


@dataclass(frozen=True)
class SourceSettings(Settings):
    """Which rows of which dataset."""

    path: Path
    root: Path | None = option(None, "Folder that a table's paths start from. Default: the table's folder.", DATA)
    path_column: str = option("path", "Column with the image paths.", DATA, shared=True)
    label_column: str = option("label", "Column with the given labels.", DATA, shared=True)
    image_column: str | None = option(None, "Column with embedded images. Default: image.", DATA, shared=True)
    id_column: str | None = option(None, "Column with unique ids. Default: the path is the id.", DATA, shared=True)
    trusted_column: str | None = option(None, "Column that marks rows known to be right: never flagged.", DATA)
    split: str | None = option(None, "Use one split only, such as train.", DATA)
    limit: int | None = option(None, "Use a stratified sample of this many rows.", DATA, least=2, most=10**12)
    limit_seed: int = 0
    allow_outside: bool = outside_option()
    images: bool = True  # False: rows have vectors, and need no image

    def location(self) -> dict[str, Path]:
        """Return the paths that a later command needs to find the dataset again."""
        return {"path": self.path, **({"root": self.root} if self.root is not None else {})}

    def identity(self) -> Document:
        """Return the settings that change results: all but the location of the dataset."""
        chosen = asdict(self)
        del chosen["path"], chosen["root"], chosen["allow_outside"]
        if self.images:
            del chosen["images"]
        return chosen


@dataclass(frozen=True)
class PixelSettings(Settings):
    """How files are decoded, and where pixels and features are cached."""

    workers: int | None = option(
        None, "Decoding processes. Default: one per core.", MACHINE, least=1, most=1024, shared=True
    )
    cache_dir: Path | None = option(
        None, "Folder of the cache. Default: the user's cache folder.", MACHINE, shared=True
    )
    cache: bool = option(
        True, "Keep pixels and features for later runs.", MACHINE, flags=("--cache/--no-cache",), shared=True
    )
    cache_budget: int = option(
        20 * 10**9,
        "A dataset whose pixels need more is streamed.",
        MACHINE,
        least=0,
        most=2**60,
        parse=parse_bytes,
        shown="20GB",
        metavar="SIZE",
    )
    max_pixels: int = option(2**26, "Images with more pixels are not decoded.", MACHINE, least=1, most=2**40)
    decode_seconds: float = 60.0  # time limit per image; then its worker process is replaced


@dataclass(frozen=True)
class TrainingOptions(Settings):
    """What the user asked for; None leaves the choice to the preset."""

    preset: str = option(
        "auto", "auto, or the paper's own rule or recipe.", NETWORK, choices=("auto", "paper", "cifar", "clothing1m")
    )
    backbone: str | None = option(
        None,
        "lite0, timm/NAME, or resnetN: 8, 20, 32, 56 for small images; 18, 34, 50, 101, 152.",
        NETWORK,
        metavar="NAME",
    )
    weights: str | None = option(
        None,
        "Initial weights: none, imagenet, lite0, timm/NAME or a file. Default: lite0 without a GPU.",
        NETWORK,
        metavar="NAME|FILE",
    )
    freeze: bool | None = option(
        None, "Train linear heads on frozen features, or the whole network.", NETWORK, flags=("--freeze/--no-freeze",)
    )
    image_size: int | None = option(
        None, "Side of the training images in pixels.", NETWORK, least=16, most=1024, metavar="PX"
    )
    seed: int = option(0, "Seed of all random numbers.", TRAINING, least=0, most=2**63 - 1)
    epochs: int | None = option(None, "Epochs, at most.", TRAINING, least=2, most=MOST_EPOCHS)
    batch_size: int | None = option(None, "Batch size, over all processes.", TRAINING, least=2, most=10**6)
    lr: float | None = option(None, "Learning rate.", TRAINING, above=0.0, most=1e38)
    beta: float | None = option(None, "Weight of the confidence regularizer.", TRAINING, least=0.0, most=1e6)
    warmup_epochs: int | None = option(
        None,
        "Epochs of plain cross-entropy. Default: until held-out agreement levels off.",
        TRAINING,
        least=0,
        most=MOST_EPOCHS,
    )
    settle_epochs: int | None = option(
        None,
        "Epochs of cross-entropy before the snapshot that the verdict uses; 0: none.",
        TRAINING,
        least=0,
        most=MOST_EPOCHS,
    )
    ramp_epochs: int | None = option(None, "Epochs over which beta rises.", TRAINING, least=0, most=MOST_EPOCHS)
    sieve_start: int | None = option(
        None, "First epoch that trains on kept rows only.", TRAINING, least=1, most=MOST_EPOCHS, metavar="EPOCH"
    )
    sieve_eps: float | None = option(
        None, "Log floor of the verdict; larger flags more.", TRAINING, above=0.0, most=1.0, metavar="EPS"
    )
    loop_eps: float | None = option(
        None,
        "Log floor of the sieve in the loop. Default: from 1e-3 to 1e-8.",
        TRAINING,
        above=0.0,
        most=1.0,
        metavar="EPS",
    )
    flip: bool | None = option(
        None, "Mirror images. Default: tested on held-out rows.", TRAINING, flags=("--flip/--no-flip",)
    )
    mixup: float | None = option(
        None, "Mix pairs of kept images, by Beta(ALPHA, ALPHA); 0: none.", TRAINING, least=0, most=100, metavar="ALPHA"
    )
    balanced: bool | None = option(
        None, "Draw all classes equally often.", TRAINING, flags=("--balanced/--no-balanced",)
    )
    epoch_steps: int | None = option(None, "Batches per epoch. Default: every row once.", TRAINING, least=1, most=10**9)
    score_pass: str = option(
        "eval", "Score all rows in eval mode, or the augmented training batches.", TRAINING, choices=("eval", "train")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights is not None and (not self.weights or _looks_like_a_keyword(self.weights)):
            raise UsageError(
                f"--weights {self.weights!r}: empty, or a file with the name of a keyword.",
                "Rename it, or pass a keyword.",
            )
        if not self.freeze:
            return
        if self.preset != "auto":
            raise UsageError(f"--freeze: --preset {self.preset} trains the whole network.", "Leave one of them out.")
        if self.weights == "none":
            raise UsageError(
                "--freeze with --weights none: there are no pretrained weights to freeze.",
                "Choose lite0, imagenet or a file.",
            )
        if self.mixup or self.balanced or self.epoch_steps:
            raise UsageError("--freeze: does not support --mixup, --balanced or --epoch-steps.", "Leave them out.")
        if self.score_pass != "eval" or self.settle_epochs is not None:
            raise UsageError("--freeze: does not support --score-pass or --settle-epochs.", "Leave them out.")


def _looks_like_a_keyword(weights: str) -> bool:
    """Return True for a file called `none`, `imagenet` or `lite0`: later commands store only its name."""
    return Path(weights).name in KEYWORDS and Path(weights).name != weights


def device_option() -> Any:
    """Return the field `device`, the same in every command."""
    return option("auto", "Device.", MACHINE, choices=("auto", "cpu", "cuda", "mps"), shared=True)


@dataclass(frozen=True)
class MovedData(Settings):
    """Where a finished run's dataset is, if the run is not to be asked: it was moved, or the run is a stranger's."""

    data: Path | None = option(None, "Path of the dataset, if it was moved or the run is not yours.", DATA)
    root: Path | None = option(None, "Folder of a table's images, if it was moved or the run is not yours.", DATA)
    allow_outside: bool = outside_option()


NOT_MOVED = MovedData()


def replace_output_option() -> Any:
    """Return the field of --force."""
    return option(False, "Replace existing output.", OUTPUT)


def waivers_option() -> Any:
    """Return the field `waivers`, the same in every command."""
    return option(WAIVERS, "File of reviewed rows whose label is right, as `waive` writes it.", DATA, shared=True)


MIN_PROBABILITY = 0.4  # how it was found: noisesieve/bench/README.md


def min_probability_option(default: float = MIN_PROBABILITY) -> float:
    """Declare --min-probability: which flagged rows people are shown, in page, export and gate alike."""
    text = "Show, export and count only flagged rows that are wrong with at least this probability."
    declared: float = option(default, text, OUTPUT, metavar="P", least=0.0, most=1.0, shared=True)
    return declared


def decisions_option(text: str) -> tuple[Path, ...]:
    """Declare --decisions: one or more decision files."""
    text = f"{text}: decisions.csv of the review page, or several files."
    declared: tuple[Path, ...] = option((), text, DATA, parse=parse_paths, metavar="FILES")
    return declared


def embeddings_option(text: str) -> Path | None:
    """Declare --embeddings."""
    text = f"{text}: .npy, .npz or .parquet, by row or by id."
    declared: Path | None = option(None, text, DATA, metavar="FILE")
    return declared


def group_by_option(panel: str) -> str | None:
    """Declare --group-by."""
    text = "Show flagged and expected wrong by the values of this column, such as annotator."
    declared: str | None = option(None, text, panel, metavar="COLUMN")
    return declared


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
    decisions: tuple[Path, ...] = decisions_option("Learn from people's decisions")
    waivers: Path = waivers_option()
    training: TrainingOptions = field(default_factory=TrainingOptions)
    device: str = device_option()
    pixels: PixelSettings = field(default_factory=PixelSettings)

    @property
    def has_vectors(self) -> bool:
        """True if rows have embeddings or predictions, and need no image."""
        return self.embeddings is not None or self.predictions is not None

    def identity(self) -> Document:
        """Return the settings that change the report. A run is recognised by these, by its recipe and by its data."""
        options = asdict(self.training)
        if (weights := self.training.weights) is not None:
            # A file without its folder; the recipe has its hash.
            options["weights"] = weights if weights.startswith("timm/") else Path(weights).name
        return {
            "source": self.source.identity(),
            "max_pixels": self.pixels.max_pixels,
            "wishes": options,
            "probabilities": self.probabilities,
        }


def scan_settings(path: str | Path, **options: object) -> ScanSettings:
    """Return the settings of a scan from flat options such as `epochs=20`."""
    return build_settings(ScanSettings, {"path": path, "limit_seed": options.get("seed", 0), **options})
