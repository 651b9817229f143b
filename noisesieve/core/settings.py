"""The settings of every command, as frozen dataclasses. None means: chosen from the data and the machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from noisesieve.core.errors import UsageError

PRESETS = ("auto", "paper", "cifar", "clothing1m")
SCORE_PASSES = ("eval", "train")
DEVICES = ("auto", "cpu", "cuda", "mps")
PROBABILITIES = ("auto", "all", "none")
WAIVERS = ".noisesieve-waivers.csv"  # in the working folder, to be committed
EXPORT_VERDICTS = ("corrupted", "clean", "all")
FILE_MODES = ("link", "copy")
TARGETS = ("current", "epoch-start", "ema")
RETRAIN_STARTS = ("scratch", "run")
BASELINES = ("ce",)
NOISES = ("symmetric", "asymmetric", "instance")


@dataclass(frozen=True)
class SourceSettings:
    """Which rows of which dataset."""

    path: Path
    root: Path | None = None
    path_column: str = "path"
    label_column: str = "label"
    image_column: str | None = None
    id_column: str | None = None
    trusted_column: str | None = None
    split: str | None = None
    limit: int | None = None
    limit_seed: int = 0
    allow_outside: bool = False

    def location(self) -> dict[str, Path]:
        """Return the paths that a later command needs to find the dataset again."""
        return {"path": self.path, **({"root": self.root} if self.root is not None else {})}

    def identity(self) -> dict[str, Any]:
        """Return the settings that change results: all but the location of the dataset."""
        chosen = asdict(self)
        del chosen["path"], chosen["root"], chosen["allow_outside"]
        return chosen


@dataclass(frozen=True)
class PixelSettings:
    """How files are decoded, and where the pixels are cached."""

    max_pixels: int = 2**26
    decode_seconds: float = 60.0  # time limit per image; then its worker process is replaced
    workers: int | None = None  # None: one per core
    cache_dir: Path | None = None  # None: the user's cache folder
    cache: bool = True
    cache_budget: int = 20 * 10**9  # bytes; a dataset that needs more is streamed


@dataclass(frozen=True)
class TrainingOptions:
    """What the user asked for; None leaves the choice to the preset."""

    preset: str = "auto"
    backbone: str | None = None
    weights: str | None = None  # none, imagenet, lite0, or a file's path
    freeze: bool | None = None
    image_size: int | None = None
    epochs: int | None = None
    warmup_epochs: int | None = None
    settle_epochs: int | None = None
    ramp_epochs: int | None = None
    sieve_start: int | None = None
    beta: float | None = None
    batch_size: int | None = None
    lr: float | None = None
    flip: bool | None = None
    mixup: float | None = None
    balanced: bool | None = None
    epoch_steps: int | None = None
    loop_eps: float | None = None
    sieve_eps: float | None = None
    score_pass: str = "eval"
    seed: int = 0


@dataclass(frozen=True)
class Recipe:
    """All choices of one training. Epochs count from 1; with `adaptive_warmup` the warm-up may end earlier."""

    backbone: str
    image_size: int
    epochs: int
    warmup_epochs: int
    ramp_epochs: int
    sieve_start: int
    batch_size: int
    lr: float
    beta: float = 2.0
    weights: str = "none"  # the initial weights: none, imagenet, lite0, or a file's name
    weights_sha256: str = ""
    frozen: bool = False  # True: only linear heads are trained, on features that are computed once
    folds: int = 0  # frozen: every row is scored by heads that were not trained on it
    head_seeds: int = 0  # frozen: number of partitions into folds; there are folds * head_seeds heads
    body_lr: float = 1.0  # learning rate of all layers but the last, as a share of `lr`
    # "hold": constant in the warm-up, then a cosine over the settle epochs and another one over the rest;
    # "steps": divided by ten after each of lr_steps; "cosine": one cosine over all epochs
    lr_schedule: str = "hold"
    lr_steps: tuple[int, ...] = ()
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = True
    clip_norm: float = 5.0
    adaptive_warmup: bool = False
    watch_every: int = 1  # epochs between two evaluations of the held-out rows
    flip: bool | None = None  # None: tested on held-out rows during the warm-up
    mixup: float = 0.0  # alpha of the Beta distribution for mixup of kept rows; 0: no mixup
    balanced: bool = False  # True: batches draw all classes equally often, and the prior is uniform
    epoch_steps: int | None = None  # batches per epoch; None: every row once
    divide_at: int | None = None  # epoch whose clean / corrupted split `retrain` uses; None: the verdict
    ema_epochs: float = 0.5  # horizon of the averaged weights used for scoring; 0: no averaging
    average_epochs: int = 5  # the verdict's probabilities are the mean over this many last epochs
    settle_epochs: int = 0  # epochs of cross-entropy after the warm-up, for the snapshot that the verdict combines
    opinion_weight: float = 0.3  # weight of the cross-entropy snapshot in the geometric mean
    loop_eps: float = 1e-3
    adaptive_eps: bool = False  # True: loop_eps is lowered where snapshot and network disagree on the first suspects
    sieve_eps: float = 0.3
    score_pass: str = "eval"
    seed: int = 0


@dataclass(frozen=True)
class ScanSettings:
    """One `noisesieve scan`."""

    source: SourceSettings
    output: Path | None = None
    pixels: PixelSettings = field(default_factory=PixelSettings)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    device: str = "auto"
    probabilities: str = "auto"
    review: bool = True
    waivers: Path = Path(WAIVERS)
    force: bool = False

    def identity(self) -> dict[str, Any]:
        """Return the settings that change the report. A run is recognised by these and by its data."""
        options = asdict(self.training)
        if (weights := self.training.weights) is not None:
            options["weights"] = Path(weights).name  # without its folder; the recipe has the file's hash
        return {
            "source": self.source.identity(),
            "max_pixels": self.pixels.max_pixels,
            "wishes": options,
            "probabilities": self.probabilities,
        }


@dataclass(frozen=True)
class InjectSettings:
    """One `noisesieve inject`."""

    source: SourceSettings
    output: Path
    noise: str
    rate: float
    seed: int = 0
    pixels: PixelSettings = field(default_factory=PixelSettings)
    force: bool = False

    def __post_init__(self) -> None:
        if self.noise not in NOISES:
            raise UsageError(f"--noise {self.noise}: unknown.", f"Choose {', '.join(NOISES)}.")
        if not 0 < self.rate < 1:
            raise UsageError(f"--rate {self.rate:g}: must lie between 0 and 1.", "Write 0.2, or 20%.")


@dataclass(frozen=True)
class BenchSettings:
    """One `noisesieve bench`."""

    scan: ScanSettings
    methods: tuple[str, ...] = ()  # empty: all
    truth: Path | None = None
    truth_column: str | None = None


@dataclass(frozen=True)
class RetrainOptions:
    """What the user asked of consistency training; None: chosen from the run and the sizes of its two sets."""

    weight: float | None = None
    ratio: float | None = None
    target: str = "current"
    start: str | None = None
    epochs: int | None = None
    warmup_epochs: float | None = None
    batch_size: int | None = None
    lr: float | None = None
    clip_norm: float = 5.0
    relabel: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for option, value, allowed in (
            ("--target", self.target, TARGETS),
            ("--start", self.start, (None, *RETRAIN_STARTS)),
        ):
            if value not in allowed:
                raise UsageError(f"{option} {value}: unknown.", f"Choose {', '.join(filter(None, allowed))}.")
        for option, number, least in (
            ("--weight", self.weight, 0.0),
            ("--ratio", self.ratio, 0.0),
            ("--lr", self.lr, 1e-12),
            ("--warmup-epochs", self.warmup_epochs, 0.0),
            ("--clip-norm", self.clip_norm, 1e-12),
            ("--epochs", self.epochs, 1.0),
            ("--batch-size", self.batch_size, 2.0),
        ):
            if number is not None and not least <= number < float("inf"):
                raise UsageError(f"{option} {number:g}: must be at least {least:g}.")
        _require_share("--relabel", self.relabel)


@dataclass(frozen=True)
class RetrainSettings:
    """One `noisesieve retrain`."""

    run: Path
    output: Path | None = None
    test: SourceSettings | None = None
    baseline: str | None = None
    decisions: tuple[Path, ...] = ()
    training: RetrainOptions = field(default_factory=RetrainOptions)
    device: str = "auto"
    pixels: PixelSettings = field(default_factory=PixelSettings)
    data: Path | None = None
    root: Path | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.baseline not in (None, *BASELINES):
            raise UsageError(f"--baseline {self.baseline}: unknown.", f"Choose {', '.join(BASELINES)}.")
        if self.baseline is not None and self.test is None:
            raise UsageError("--baseline: needs right labels to compare on.", "Name them with --test.")


@dataclass(frozen=True)
class ReviewSettings:
    """One `noisesieve review`."""

    output: Path | None = None
    limit: int = 500  # suspects on the page
    data: Path | None = None
    root: Path | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise UsageError(f"--limit {self.limit}: must be at least 1.")


@dataclass(frozen=True)
class ExportSettings:
    """One `noisesieve export`."""

    format: str
    output: Path | None = None
    only: str = "corrupted"
    top: int | None = None
    min_probability: float | None = None
    files: str = "link"
    image_prefix: str = "/data/local-files/?d="
    data: Path | None = None
    root: Path | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.only not in EXPORT_VERDICTS:
            raise UsageError(f"--only {self.only}: unknown.", f"Choose {', '.join(EXPORT_VERDICTS)}.")
        if self.files not in FILE_MODES:
            raise UsageError(f"--files {self.files}: unknown.", f"Choose {', '.join(FILE_MODES)}.")
        if self.top is not None and self.top < 1:
            raise UsageError(f"--top {self.top}: must be at least 1.")
        _require_share("--min-probability", self.min_probability)


@dataclass(frozen=True)
class ApplySettings:
    """One `noisesieve apply`."""

    decisions: tuple[Path, ...]
    output: Path
    accept_above: float | None = None
    new_classes: bool = False
    tree: str | None = None
    data: Path | None = None
    root: Path | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.tree not in (None, *FILE_MODES):
            raise UsageError(f"--tree {self.tree}: unknown.", f"Choose {', '.join(FILE_MODES)}.")
        _require_share("--accept-above", self.accept_above)
        if not self.decisions and self.accept_above is None:
            raise UsageError("No decisions.", "Name a file of decisions, or pass --accept-above 0.95.")


@dataclass(frozen=True)
class Limit:
    """A share (`5%`, `0.05`) or a count (`12`)."""

    value: Fraction  # exact, so that a batch exactly at its limit passes
    is_share: bool
    text: str


@dataclass(frozen=True)
class Policy:
    """The limits of the gate; None: no such rule."""

    max_corrupted: Limit | None = Limit(Fraction(5, 100), True, "5%")
    max_class_corrupted: Limit | None = None
    max_unreadable: Limit | None = Limit(Fraction(0), False, "0")
    max_unknown_classes: int | None = 0
    min_examples: int | None = 1
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.min_examples is not None and self.min_examples < 1:
            raise UsageError(f"--min-examples {self.min_examples}: must be at least 1: an empty batch never passes.")
        if self.confidence is not None and not 0.5 <= self.confidence < 1:
            raise UsageError(f"--confidence {self.confidence:g}: must lie between 0.5 and 1, such as 0.95.")


@dataclass(frozen=True)
class CheckSettings:
    """One `noisesieve check`."""

    source: SourceSettings
    model: Path
    output: Path | None = None
    policy: Policy = field(default_factory=Policy)
    waivers: Path = Path(WAIVERS)
    group_by: str | None = None
    device: str = "auto"
    weights: Path | None = None  # the frozen backbone's file, if it was moved
    pixels: PixelSettings = field(default_factory=PixelSettings)
    force: bool = False


def _require_share(option: str, value: float | None) -> None:
    if value is not None and not 0 <= value <= 1:
        raise UsageError(f"{option} {value:g}: must lie between 0 and 1.")
