"""Every choice of a run, frozen. No default lives anywhere else; None means: chosen from the data and the machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from noisesieve.errors import UsageError

PRESETS = ("auto", "cifar", "clothing1m")
SCORE_PASSES = ("eval", "train")
DEVICES = ("auto", "cpu", "cuda", "mps")
PROBABILITIES = ("auto", "all", "none")
WAIVERS = ".noisesieve-waivers.csv"  # in the working folder, to be committed
ONLY = ("corrupted", "clean", "all")
FILES = ("link", "copy")
TARGETS = ("current", "epoch-start", "ema")
STARTS = ("scratch", "run")
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
        """Where the dataset lies, so that a later command finds it again."""
        return {"path": self.path, **({"root": self.root} if self.root is not None else {})}

    def identity(self) -> dict[str, Any]:
        """What of this changes results: not where the dataset lies."""
        chosen = asdict(self)
        del chosen["path"], chosen["root"], chosen["allow_outside"]
        return chosen


@dataclass(frozen=True)
class PixelSettings:
    """How files become pixels, and where those are kept."""

    max_pixels: int = 2**26
    decode_seconds: float = 60.0  # one image may take this long, then its worker is replaced
    workers: int | None = None  # None: one a core
    cache_dir: Path | None = None  # None: the user's cache folder
    cache: bool = True
    cache_budget: int = 20 * 10**9  # bytes; a dataset that needs more is streamed


@dataclass(frozen=True)
class Wishes:
    """What the user asked of training; None leaves the choice to the preset."""

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
    """Training, fully decided. Epochs count from 1; with `adaptive_warmup` the warm-up may end earlier."""

    backbone: str
    image_size: int
    epochs: int
    warmup_epochs: int
    ramp_epochs: int
    sieve_start: int
    batch_size: int
    lr: float
    beta: float = 2.0
    weights: str = "none"  # that training starts from: none, imagenet, lite0, or a file's name
    weights_sha256: str = ""
    frozen: bool = False  # only heads are trained, on features that are computed once
    folds: int = 0  # frozen: every row is judged by heads that never saw it
    head_seeds: int = 0  # frozen: partitions into folds; folds * head_seeds heads in all
    body_lr: float = 1.0  # share of the rate that everything but the head gets
    lr_schedule: str = (
        "hold"  # "hold": full until beta rises, then cosine; "steps": a tenth at each of lr_steps; "cosine"
    )
    lr_steps: tuple[int, ...] = ()
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = True
    clip_norm: float = 5.0
    adaptive_warmup: bool = False
    watch_every: int = 1  # epochs between two looks at the held-out rows: small datasets learn little in one
    flip: bool | None = None  # None: tried on held-out rows during the warm-up
    mixup: float = 0.0  # of the Beta distribution that mixes pairs of kept rows; 0: no mixing
    balanced: bool = False  # batches draw classes evenly, and the prior is even
    epoch_steps: int | None = None  # batches an epoch; None: as many as the rows make
    divide_at: int | None = None  # the epoch whose division consistency training takes over; None: the verdict's
    ema_epochs: float = 0.5  # horizon of the weight average that scores; 0: the weights themselves
    average_epochs: int = 5  # the verdict's probabilities are the mean over this many last epochs
    settle_epochs: int = 0  # between warm-up and ramp: plain CE to the end of a cosine, for a second opinion
    opinion_weight: float = 0.3  # of the second opinion, in the geometric mean that is judged
    loop_eps: float = 1e-3
    adaptive_eps: bool = False  # a smaller loop_eps where two opinions differ over the first suspects
    sieve_eps: float = 0.3
    score_pass: str = "eval"
    seed: int = 0


@dataclass(frozen=True)
class ScanSettings:
    """One `noisesieve scan`."""

    source: SourceSettings
    output: Path | None = None
    pixels: PixelSettings = field(default_factory=PixelSettings)
    wishes: Wishes = field(default_factory=Wishes)
    device: str = "auto"
    probabilities: str = "auto"
    review: bool = True
    waivers: Path = Path(WAIVERS)
    force: bool = False

    def identity(self) -> dict[str, Any]:
        """What changes the report: a run is resumed or recognised by this and by the data."""
        wishes = asdict(self.wishes)
        if (weights := self.wishes.weights) is not None:
            wishes["weights"] = Path(weights).name  # not where the file lies; its hash stands in the recipe
        return {
            "source": self.source.identity(),
            "max_pixels": self.pixels.max_pixels,
            "wishes": wishes,
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
class RetrainWishes:
    """What the user asked of consistency training; None leaves the choice to the run and the sizes of its sets."""

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
        for option, value, allowed in (("--target", self.target, TARGETS), ("--start", self.start, (None, *STARTS))):
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
        _refuse_no_share("--relabel", self.relabel)


@dataclass(frozen=True)
class RetrainSettings:
    """One `noisesieve retrain`."""

    run: Path
    output: Path | None = None
    test: SourceSettings | None = None
    baseline: str | None = None
    decisions: tuple[Path, ...] = ()
    wishes: RetrainWishes = field(default_factory=RetrainWishes)
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

    limit: int = 500  # suspects on the page


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
        if self.only not in ONLY:
            raise UsageError(f"--only {self.only}: unknown.", f"Choose {', '.join(ONLY)}.")
        if self.files not in FILES:
            raise UsageError(f"--files {self.files}: unknown.", f"Choose {', '.join(FILES)}.")
        if self.top is not None and self.top < 1:
            raise UsageError(f"--top {self.top}: must be at least 1.")
        _refuse_no_share("--min-probability", self.min_probability)


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
        if self.tree not in (None, *FILES):
            raise UsageError(f"--tree {self.tree}: unknown.", f"Choose {', '.join(FILES)}.")
        _refuse_no_share("--accept-above", self.accept_above)
        if not self.decisions and self.accept_above is None:
            raise UsageError("No decisions.", "Name a file of decisions, or pass --accept-above 0.95.")


@dataclass(frozen=True)
class Limit:
    """A share (`5%`, `0.05`) or a count (`12`)."""

    value: Fraction  # exact: a batch at its limit passes
    is_share: bool
    text: str


@dataclass(frozen=True)
class Policy:
    """What a batch may be like; None: no such rule."""

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
    weights: Path | None = None  # where the frozen backbone's file lies now
    pixels: PixelSettings = field(default_factory=PixelSettings)
    force: bool = False


def _refuse_no_share(option: str, value: float | None) -> None:
    if value is not None and not 0 <= value <= 1:
        raise UsageError(f"{option} {value:g}: must lie between 0 and 1.")
