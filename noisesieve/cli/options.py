"""Every option that several commands share, defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from noisesieve.core.settings import SourceSettings


def option(text: str, *names: str) -> Any:
    """Return an option whose default is not shown."""
    return typer.Option(*names, help=text, show_default=False)


# Which rows of which dataset
Data = Annotated[
    Path, typer.Argument(help="An image folder, or a .csv, .tsv, .jsonl or .parquet table.", metavar="DATA")
]
Root = Annotated[Path | None, option("Folder that a table's paths start from. Default: the table's folder.")]
PathColumn = Annotated[str, typer.Option(help="Column with the image paths.")]
LabelColumn = Annotated[str, typer.Option(help="Column with the given labels.")]
ImageColumn = Annotated[str | None, option("Column with embedded images. Default: image.")]
IdColumn = Annotated[str | None, option("Column with unique ids. Default: the path is the id.")]
Split = Annotated[str | None, option("Use one split only, such as train.")]
Limit = Annotated[int | None, option("Use a stratified sample of this many rows.")]
AllowOutside = Annotated[bool, option("Accept ../ and absolute paths in a table.", "--allow-outside")]
TrustedColumn = Annotated[str | None, option("Column that marks rows known to be right: never flagged.")]

# Training; the defaults depend on device, image size and number of rows
Preset = Annotated[str, typer.Option(help="auto, paper (the paper's own rule), cifar or clothing1m.")]
Backbone = Annotated[str | None, option("resnet8, 20, 32, 56, 18, 34, 50, 101, 152 or lite0.")]
Weights = Annotated[
    str | None, option("Initial weights: none, imagenet, lite0 or a file. Default: lite0 for photos on a CPU.")
]
Freeze = Annotated[
    bool | None, option("Train linear heads on frozen features, or the whole network.", "--freeze/--no-freeze")
]
ImageSize = Annotated[int | None, option("Side of the training images in pixels.")]
Epochs = Annotated[int | None, option("Epochs, at most.")]
WarmupEpochs = Annotated[
    int | None, option("Epochs of plain cross-entropy. Default: until held-out agreement levels off.")
]
SettleEpochs = Annotated[
    int | None, option("Epochs of cross-entropy before the snapshot that the verdict uses; 0: none.")
]
RampEpochs = Annotated[int | None, option("Epochs over which beta rises.")]
SieveStart = Annotated[int | None, option("First epoch that trains on kept rows only.")]
Beta = Annotated[float | None, option("Weight of the confidence regularizer.")]
BatchSize = Annotated[int | None, option("Batch size, over all processes.")]
LearningRate = Annotated[float | None, option("Learning rate.")]
Flip = Annotated[bool | None, option("Mirror images. Default: tested on held-out rows.", "--flip/--no-flip")]
Mixup = Annotated[float | None, option("Mix pairs of kept images, by Beta(ALPHA, ALPHA); 0: none.")]
Balanced = Annotated[bool | None, option("Draw all classes equally often.", "--balanced/--no-balanced")]
EpochSteps = Annotated[int | None, option("Batches per epoch. Default: every row once.")]
LoopEps = Annotated[float | None, option("Log floor of the sieve in the loop. Default: from 1e-3 to 1e-8.")]
SieveEps = Annotated[float | None, option("Log floor of the verdict, up to 1; larger flags more.")]
ScorePass = Annotated[str, typer.Option(help="eval, or train: score the augmented training batches.")]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]

# The run
Output = Annotated[Path | None, option("Run folder. Default: noisesieve-runs/<name>.", "--output", "-o")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Workers = Annotated[int | None, option("Decoding processes. Default: one per core.")]
CacheDir = Annotated[Path | None, option("Folder of the cache. Default: the user's cache folder.")]
UseCache = Annotated[bool, typer.Option("--cache/--no-cache", help="Keep pixels and features for later runs.")]
CacheBudget = Annotated[str, typer.Option(help="A dataset whose pixels need more is streamed.")]
MaxPixels = Annotated[int, typer.Option(help="Images with more pixels are not decoded.")]
Probabilities = Annotated[str, typer.Option(help="Write probabilities.parquet: auto, all or none.")]
MaxTime = Annotated[str | None, option("Stop at a checkpoint after 90s, 15m or 2h (exit 143).")]
DryRun = Annotated[bool, option("Show the plan and its cost; train nothing.", "--dry-run")]
Force = Annotated[bool, option("Replace another run in the same folder.", "--force")]
Review = Annotated[bool, typer.Option("--review/--no-review", help="Write review.html into the run folder.")]
Retrain = Annotated[bool, option("Then train a model on the clean rows, as `retrain` does.", "--retrain")]
StrictDoctor = Annotated[bool, option("Exit 3 if there is a finding marked with `!`.", "--strict")]
Waivers = Annotated[Path, typer.Option(help="File of reviewed rows whose label is right, as `waive` writes it.")]
Strict = Annotated[bool, option("Exit 3 if an image cannot be read.", "--strict")]

# A finished run, and its dataset if that has moved
Run = Annotated[Path, typer.Argument(help="A run folder that `scan` has finished.", metavar="RUN")]
MovedData = Annotated[Path | None, option("New path of the dataset, if it was moved.", "--data")]
MovedRoot = Annotated[Path | None, option("New folder of a table's images, if it was moved.", "--root")]
Overwrite = Annotated[bool, option("Replace existing output.", "--force")]

# Known right labels
Truth = Annotated[Path | None, option("Table of right labels, with the columns path (or id) and label.", "--truth")]
TruthColumn = Annotated[str | None, option("Column with the right labels. Default: true_label.", "--truth-column")]

# A test set, which is never trained on
Test = Annotated[Path | None, option("Dataset with right labels, never trained on, to measure accuracy.")]
TestLabel = Annotated[str, typer.Option(help="Column with the test set's labels.")]
TestRoot = Annotated[Path | None, option("Folder that the test table's paths start from.")]
TestSplit = Annotated[str | None, option("Use one split of the test set only, such as test.")]

# Every command
Json = Annotated[bool, option("Print one JSON document on stdout.", "--json")]
Quiet = Annotated[bool, option("No progress, no tables.", "--quiet", "-q")]
Debug = Annotated[bool, option("Show tracebacks.", "--debug")]


def test_source(path: Path, label_column: str, root: Path | None, split: str | None) -> SourceSettings:
    """Return the source settings of a test set."""
    return SourceSettings(path, root=root, label_column=label_column, split=split)


def seconds(text: str | None) -> float | None:
    """Parse `90`, `90s`, `15m` or `2h` to seconds."""
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        value = float(number) * unit
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise typer.BadParameter(f"{text!r} is not a time: write 90s, 15m or 2h.", param_hint="--max-time")
    return value


def age(text: str | None) -> float | None:
    """Parse `30d`, `12h` or `90m` to seconds."""
    if text is None:
        return None
    units = {"m": 60, "h": 3600, "d": 86_400}
    if text[-1:] not in units or not text[:-1].isdecimal():
        raise typer.BadParameter(f"{text!r} is not an age: write 30d, 12h or 90m.", param_hint="--older-than")
    return float(text[:-1]) * units[text[-1]]


def size(text: str) -> int:
    """Parse `500MB`, `20GB`, `1TB` or a plain number to bytes."""
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    upper = text.strip().upper()
    number, unit = (upper[:-2], units[upper[-2:]]) if upper[-2:] in units else (upper, 1)
    try:
        return int(float(number) * unit)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a size: write 500MB or 20GB.", param_hint="--cache-budget") from None


def count_or_none(text: str, option: str) -> int | None:
    """Parse a whole number, or `none`."""
    if text == "none":
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is not a count: write 0, 3 or none.", param_hint=option)
    return int(text)


def share(text: str, option: str) -> float:
    """Parse `0.05` or `5%` to a share between 0 and 1."""
    number, scale = (text[:-1], 100.0) if text.endswith("%") else (text, 1.0)
    try:
        value = float(number) / scale
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise typer.BadParameter(f"{text!r} is not a share between 0 and 1: write 0.05 or 5%.", param_hint=option)
    return value
