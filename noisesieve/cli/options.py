"""Every option, defined once; commands take those they need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from noisesieve.settings import SourceSettings


def option(text: str, *names: str) -> Any:
    """An option whose default is not worth showing: it is chosen from the data, or none."""
    return typer.Option(*names, help=text, show_default=False)


# Which rows of which dataset
Data = Annotated[
    Path, typer.Argument(help="An image folder, or a .csv, .tsv, .jsonl or .parquet table.", metavar="DATA")
]
Root = Annotated[Path | None, option("Folder that a table's paths start from; else the table's own.")]
PathColumn = Annotated[str, typer.Option(help="Column with the image paths.")]
LabelColumn = Annotated[str, typer.Option(help="Column with the given labels.")]
ImageColumn = Annotated[str | None, option("Column with embedded images; else `image`.")]
IdColumn = Annotated[str | None, option("Column with unique ids; else the path is the id.")]
Split = Annotated[str | None, option("Take one split only, such as train.")]
Limit = Annotated[int | None, option("Take a stratified part of this many rows.")]
AllowOutside = Annotated[bool, option("Accept ../ and absolute paths in a table.", "--allow-outside")]
TrustedColumn = Annotated[str | None, option("Column that marks rows known to be right: never sieved out.")]

# Training; what is not given is chosen from device, image size and number of rows
Preset = Annotated[str, typer.Option(help="auto, cifar or clothing1m.")]
Backbone = Annotated[str | None, option("resnet8, 20, 32, 56, 18, 34, 50, 101, 152 or lite0.")]
Weights = Annotated[str | None, option("Start from none, imagenet, lite0 or a file; else lite0 for photos on a CPU.")]
Freeze = Annotated[
    bool | None, option("Train heads on frozen features, in seconds; else all of the network.", "--freeze/--no-freeze")
]
ImageSize = Annotated[int | None, option("Side of the training images in pixels.")]
Epochs = Annotated[int | None, option("Epochs, at most.")]
WarmupEpochs = Annotated[int | None, option("Epochs of plain cross-entropy; else until held-out agreement levels off.")]
SettleEpochs = Annotated[
    int | None, option("Epochs of plain cross-entropy at a falling rate, for a second opinion; 0: none.")
]
RampEpochs = Annotated[int | None, option("Epochs over which beta rises.")]
SieveStart = Annotated[int | None, option("First epoch that trains on sieved rows.")]
Beta = Annotated[float | None, option("Weight of the confidence regularizer.")]
BatchSize = Annotated[int | None, option("Batch size, over all processes.")]
LearningRate = Annotated[float | None, option("Learning rate.")]
Flip = Annotated[bool | None, option("Mirror images; else tried on held-out rows.", "--flip/--no-flip")]
Mixup = Annotated[float | None, option("Mix pairs of kept images, by Beta(ALPHA, ALPHA); 0: do not.")]
Balanced = Annotated[bool | None, option("Draw batches evenly over the classes.", "--balanced/--no-balanced")]
EpochSteps = Annotated[int | None, option("Batches an epoch; else all rows once.")]
LoopEps = Annotated[float | None, option("Log floor of the sieve inside the loop; else from 1e-3 to 1e-8.")]
SieveEps = Annotated[float | None, option("Log floor of the verdict, up to 1; larger flags more.")]
ScorePass = Annotated[str, typer.Option(help="eval, or train: score the augmented training batch.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]

# The run
Output = Annotated[Path | None, option("Run folder; else noisesieve-runs/<name>.", "--output", "-o")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Workers = Annotated[int | None, option("Decoding processes; else one a core.")]
CacheDir = Annotated[Path | None, option("Where decoded pixels are kept; else the user's cache folder.")]
UseCache = Annotated[bool, typer.Option("--cache/--no-cache", help="Keep decoded pixels for later runs.")]
CacheBudget = Annotated[str, typer.Option(help="A dataset that needs more is streamed.")]
MaxPixels = Annotated[int, typer.Option(help="Images of more pixels are not opened.")]
Probabilities = Annotated[str, typer.Option(help="Write probabilities.parquet: auto, all or none.")]
MaxTime = Annotated[str | None, option("Stop at a checkpoint after 90s, 15m or 2h (exit 143).")]
DryRun = Annotated[bool, option("Say what would be done and what it costs.", "--dry-run")]
Force = Annotated[bool, option("Replace another run in the same folder.", "--force")]
Review = Annotated[bool, typer.Option("--review/--no-review", help="Write review.html into the run folder.")]
Retrain = Annotated[bool, option("Then train a model on what passed, as `retrain` does.", "--retrain")]
StrictDoctor = Annotated[bool, option("Exit 3 if anything is wrong.", "--strict")]
Waivers = Annotated[Path, typer.Option(help="Rows that were reviewed and found right, as `waive` writes them.")]
Strict = Annotated[bool, option("Exit 3 if an image cannot be read.", "--strict")]

# A finished run, and its dataset if that has moved
Run = Annotated[Path, typer.Argument(help="A run folder that `scan` has finished.", metavar="RUN")]
MovedData = Annotated[Path | None, option("Where the dataset lies now, if it moved.", "--data")]
MovedRoot = Annotated[Path | None, option("Where a table's images lie now, if they moved.", "--root")]
Overwrite = Annotated[bool, option("Replace what is there.", "--force")]

# What is held against a truth
Truth = Annotated[Path | None, option("A table with the columns path (or id) and label: the right labels.", "--truth")]
TruthColumn = Annotated[str | None, option("Column with the right labels; else true_label.", "--truth-column")]

# Right labels that are never learnt from
Test = Annotated[Path | None, option("A dataset with right labels, never learnt from: accuracy of every epoch.")]
TestLabel = Annotated[str, typer.Option(help="Column with the test set's labels.")]
TestRoot = Annotated[Path | None, option("Folder that the test table's paths start from.")]
TestSplit = Annotated[str | None, option("Take one split of the test set only, such as test.")]

# Every command
Json = Annotated[bool, option("Print one JSON document on stdout.", "--json")]
Quiet = Annotated[bool, option("No progress, no tables.", "--quiet", "-q")]
Debug = Annotated[bool, option("Show tracebacks.", "--debug")]


def test_source(path: Path, label_column: str, root: Path | None, split: str | None) -> SourceSettings:
    """Where the right labels of a test set lie."""
    return SourceSettings(path, root=root, label_column=label_column, split=split)


def seconds(text: str | None) -> float | None:
    """`90`, `90s`, `15m`, `2h` → seconds."""
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        value = float(number) * unit
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise typer.BadParameter(f"{text!r} is no time: write 90s, 15m or 2h.", param_hint="--max-time")
    return value


def age(text: str | None) -> float | None:
    """`30d`, `12h`, `90m` → seconds."""
    if text is None:
        return None
    units = {"m": 60, "h": 3600, "d": 86_400}
    if text[-1:] not in units or not text[:-1].isdecimal():
        raise typer.BadParameter(f"{text!r} is no age: write 30d, 12h or 90m.", param_hint="--older-than")
    return float(text[:-1]) * units[text[-1]]


def size(text: str) -> int:
    """`500MB`, `20GB`, `1TB` or plain bytes → bytes."""
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    upper = text.strip().upper()
    number, unit = (upper[:-2], units[upper[-2:]]) if upper[-2:] in units else (upper, 1)
    try:
        return int(float(number) * unit)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no size: write 500MB or 20GB.", param_hint="--cache-budget") from None


def count_or_none(text: str, option: str) -> int | None:
    """A whole number, or `none`."""
    if text == "none":
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is no count: write 0, 3 or none.", param_hint=option)
    return int(text)


def share(text: str, option: str) -> float:
    """`0.05` or `5%` → a share between 0 and 1."""
    number, scale = (text[:-1], 100.0) if text.endswith("%") else (text, 1.0)
    try:
        value = float(number) / scale
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise typer.BadParameter(f"{text!r} is no share between 0 and 1: write 0.05 or 5%.", param_hint=option)
    return value
