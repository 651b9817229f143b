"""`noisesieve bench`: noisesieve and its peers on the same data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from noisesieve.cli import options as o
from noisesieve.cli.stop import StopRequest
from noisesieve.cli.terminal import TerminalWatcher, WarningsOnly, console, results
from noisesieve.errors import OutputError, UsageError
from noisesieve.request import scan_settings
from noisesieve.settings import BenchSettings
from noisesieve.watch import Watcher

Methods = Annotated[
    str | None, o.option("Some of noisesieve,paper,ce,ce-sieve,aum,knn,cleanlab; else all.", "--methods")
]
JsonFile = Annotated[Path | None, o.option("Write the JSON document to this file too.", "--output", "-o")]
Ablation = Annotated[bool, o.option("The paper's ablation instead: test accuracy of four trainings.", "--ablation")]
MarkdownFile = Annotated[Path | None, o.option("Write the table as Markdown to this file.", "--markdown")]


_NOT_SETTINGS = (
    *("data", "truth", "truth_column", "methods", "output", "markdown", "as_json", "quiet", "debug"),
    *("ablation", "test", "test_label_column", "test_root", "test_split"),
)


def bench(
    context: typer.Context,
    data: o.Data,
    truth: o.Truth = None,
    truth_column: o.TruthColumn = None,
    methods: Methods = None,
    output: JsonFile = None,
    markdown: MarkdownFile = None,
    ablation: Ablation = False,
    test: o.Test = None,
    test_label_column: o.TestLabel = "label",
    test_root: o.TestRoot = None,
    test_split: o.TestSplit = None,
    root: o.Root = None,
    path_column: o.PathColumn = "path",
    label_column: o.LabelColumn = "label",
    image_column: o.ImageColumn = None,
    id_column: o.IdColumn = None,
    split: o.Split = None,
    limit: o.Limit = None,
    allow_outside: o.AllowOutside = False,
    preset: o.Preset = "auto",
    backbone: o.Backbone = None,
    weights: o.Weights = None,
    freeze: o.Freeze = None,
    image_size: o.ImageSize = None,
    epochs: o.Epochs = None,
    warmup_epochs: o.WarmupEpochs = None,
    settle_epochs: o.SettleEpochs = None,
    ramp_epochs: o.RampEpochs = None,
    sieve_start: o.SieveStart = None,
    beta: o.Beta = None,
    batch_size: o.BatchSize = None,
    lr: o.LearningRate = None,
    flip: o.Flip = None,
    mixup: o.Mixup = None,
    balanced: o.Balanced = None,
    epoch_steps: o.EpochSteps = None,
    loop_eps: o.LoopEps = None,
    sieve_eps: o.SieveEps = None,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    workers: o.Workers = None,
    cache_dir: o.CacheDir = None,
    cache: o.UseCache = True,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Measure noisesieve and its peers on the same images, backbone, schedule and seed; the truth must be known.

    Seconds are those of training and scoring, passes those over the training data; decoding is shared. Up to the end
    of the warm-up all methods train alike, by plain cross-entropy: that runs once and counts for each. cleanlab comes
    with `pip install 'noisesieve[bench]'`. With --ablation no truth is needed, but a test set with right labels.

    Example: noisesieve bench noisy.csv --truth-column true_label --methods noisesieve,ce
    """
    shared = {name: value for name, value in context.params.items() if name not in _NOT_SETTINGS}
    if ablation and weights is None and freeze is None:
        shared["weights"] = "none"  # whole networks are trained
    chosen = scan_settings(data, **shared)
    names = tuple(name.strip() for name in (methods or "").split(",") if name.strip())
    if methods is not None and not names:
        raise UsageError("--methods is empty.", "Name some, or leave it out for all.")
    settings = BenchSettings(chosen, names, truth, truth_column)
    for target in (output, markdown):
        if target is not None:
            _refuse_target(target, data)
    if output is not None and output == markdown:
        raise UsageError(f"--output and --markdown are both {output}.", "Name two files.")
    if ablation != (test is not None):
        raise UsageError("--ablation and --test go together.", "Name a dataset with right labels with --test.")
    from noisesieve.bench import ablation as parts
    from noisesieve.bench import table as contest
    from noisesieve.files import replacing, write_json

    watcher: Watcher = WarningsOnly() if quiet else TerminalWatcher()
    try:
        with StopRequest(None, hint="A bench does not resume: nothing was kept.") as asked:
            if test is not None:
                source = o.test_source(test, test_label_column, test_root, test_split)
                document = parts.ablate(settings, source, watcher=watcher, stop=asked)
            else:
                document = contest.bench(settings, watcher=watcher, stop=asked)
    finally:
        watcher.finish()
    with results():
        if as_json:
            print(json.dumps(document))
        elif quiet and ablation:
            for row in document["methods"]:
                print(f"{row['method']} accuracy {row['accuracy']:.3f}")
        elif quiet:
            for row in document["methods"]:
                print(f"{row['method']} F1 {row['f1']:.3f} AP {row['average_precision']:.3f}")
        else:
            _show_ablation(document) if ablation else _show(document)
    if output is not None:
        write_json(output, document)
        watcher.note(f"Written to {output}.")
    if markdown is not None:
        with replacing(markdown) as file:
            file.write((parts.markdown if ablation else contest.markdown)(document).encode())
        watcher.note(f"Written to {markdown}.")


def _refuse_target(target: Path, data: Path) -> None:
    """Before hours of training, not after."""
    if target.exists() and data.exists() and target.samefile(data):
        raise OutputError(f"{target}: the dataset itself.", "Name another file.")
    if target.is_dir():
        raise OutputError(f"{target}: a folder.", "Name a file.")
    folder = target.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise OutputError(f"{target}: {folder} cannot be written to.", "Name another file.")


def _show_ablation(document: dict[str, Any]) -> None:
    from noisesieve.bench.ablation import COLUMNS, cells
    from noisesieve.cli.summary import plain_table, plain_text

    out = console(stderr=False)
    out.print(plain_text(f"accuracy on {document['test_rows']:,} test images", "bold"))
    table = plain_table()
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in document["methods"]:
        table.add_row(*cells(row))
    out.print(table)


def _show(document: dict[str, Any]) -> None:
    from noisesieve.bench.table import HEADINGS, cells
    from noisesieve.cli.summary import plain_table, plain_text

    out = console(stderr=False)
    share = document["wrong"] / document["measured"]
    out.print(plain_text(f"{document['wrong']:,} of {document['measured']:,} labels are wrong: {share:.1%}", "bold"))
    table = plain_table()
    for name in HEADINGS:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in document["methods"]:
        table.add_row(*cells(row))
    out.print(table, width=max(out.width, 78), crop=False, no_wrap=True, overflow="ignore")  # a cut figure is none
