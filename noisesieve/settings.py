"""Every choice of a run, frozen. No default lives anywhere else; None means: chosen from the data and the machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PRESETS = ("auto", "cifar", "clothing1m")
SCORE_PASSES = ("eval", "train")
DEVICES = ("auto", "cpu", "cuda", "mps")
PROBABILITIES = ("auto", "all", "none")


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
    cache_budget: int = 20 * 2**30  # bytes; a dataset that needs more is streamed


@dataclass(frozen=True)
class Wishes:
    """What the user asked of training; None leaves the choice to the preset."""

    preset: str = "auto"
    backbone: str | None = None
    image_size: int | None = None
    epochs: int | None = None
    warmup_epochs: int | None = None
    ramp_epochs: int | None = None
    sieve_start: int | None = None
    beta: float | None = None
    batch_size: int | None = None
    lr: float | None = None
    flip: bool | None = None
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
    lr_schedule: str = "hold"  # "hold": full until beta rises, then cosine; "steps": divided by 10 at lr_steps
    lr_steps: tuple[int, ...] = ()
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = True
    clip_norm: float = 5.0
    adaptive_warmup: bool = False
    flip: bool | None = None  # None: tried on held-out rows during the warm-up
    ema_epochs: float = 0.5  # horizon of the weight average that scores; 0: the weights themselves
    average_epochs: int = 5  # the verdict's probabilities are the mean over this many last epochs
    loop_eps: float = 1.0
    sieve_eps: float = 1e-3
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
    max_seconds: float | None = None
    force: bool = False
    strict: bool = False

    def identity(self) -> dict[str, Any]:
        """What changes the report: a run is resumed or recognised by this and by the data."""
        return {
            "source": self.source.identity(),
            "max_pixels": self.pixels.max_pixels,
            "wishes": asdict(self.wishes),
            "probabilities": self.probabilities,
        }
