"""The options and output of `noisesieve bench`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from noisesieve.cli import options as o
from noisesieve.cli.signals import StopRequest
from noisesieve.cli.terminal import TerminalWatcher, WarningsOnly, console, results
from noisesieve.core.errors import OutputError, UsageError
from noisesieve.core.options import scan_settings
from noisesieve.core.progress import Watcher
from noisesieve.core.settings import BenchSettings

Methods = Annotated[
    str | None, o.option("Some of noisesieve,paper,ce,ce-sieve,aum,knn,cleanlab. Default: all.", "--methods")
]
JsonFile = Annotated[Path | None, o.option("Also write the JSON document to this file.", "--output", "-o")]
Ablation = Annotated[bool, o.option("Run the paper's ablation: test accuracy of four trainings.", "--ablation")]
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
    """Measure noisesieve and its peers with the same images, backbone, schedule and seed. The truth must be known.

    Seconds include training and scoring, passes are over the training data; decoding is shared. Up to the end of the
    warm-up all methods train with plain cross-entropy: this runs once and counts for each. cleanlab is installed with
    `pip install 'noisesieve[bench]'`. With --ablation a test set with right labels is needed instead of the truth.

    Example: noisesieve bench noisy.csv --truth-column true_label --methods noisesieve,ce
    """
    shared = {name: value for name, value in context.params.items() if name not in _NOT_SETTINGS}
    if ablation and weights is None and freeze is None:
        shared["weights"] = "none"  # whole networks are trained
    chosen = scan_settings(data, **shared)
    names = tuple(name.strip() for name in (methods or "").split(",") if name.strip())
    if methods is not None and not names:
        raise UsageError("--methods is empty.", "Give some, or leave it out for all.")
    settings = BenchSettings(chosen, names, truth, truth_column)
    for target in (output, markdown):
        if target is not None:
            _refuse_target(target, data)
    if output is not None and output == markdown:
        raise UsageError(f"--output and --markdown are both {output}.", "Give two files.")
    if ablation != (test is not None):
        raise UsageError("--ablation and --test need each other.", "Give a dataset with right labels with --test.")
    from noisesieve.commands._ablation import ablate
    from noisesieve.commands.bench import as_markdown
    from noisesieve.commands.bench import bench as run_bench
    from noisesieve.core.files import atomic_write, write_json

    watcher: Watcher = WarningsOnly() if quiet else TerminalWatcher()
    try:
        with StopRequest(None, hint="A bench does not resume: nothing was written.") as stop:
            if test is not None:
                source = o.test_source(test, test_label_column, test_root, test_split)
                document = ablate(settings, source, watcher=watcher, stop=stop)
            else:
                document = run_bench(settings, watcher=watcher, stop=stop)
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
            _show(document)
    if output is not None:
        write_json(output, document)
        watcher.note(f"Written to {output}.")
    if markdown is not None:
        with atomic_write(markdown) as file:
            file.write(as_markdown(document).encode())
        watcher.note(f"Written to {markdown}.")


def _refuse_target(target: Path, data: Path) -> None:
    """Refuse a target that cannot be written, before hours of training."""
    if target.exists() and data.exists() and target.samefile(data):
        raise OutputError(f"{target}: is the dataset itself.", "Choose another file.")
    if target.is_dir():
        raise OutputError(f"{target}: is a folder.", "Choose the name of a file.")
    folder = target.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise OutputError(f"{target}: {folder} is not writable.", "Choose another file.")


def _show(document: dict[str, Any]) -> None:
    from noisesieve.cli.terminal import plain_table, plain_text
    from noisesieve.commands.bench import table_of

    out = console(stderr=False)
    if "test_rows" in document:
        headline = f"accuracy on {document['test_rows']:,} test images"
    else:
        share = document["wrong"] / document["measured"]
        headline = f"{document['wrong']:,} of {document['measured']:,} labels are wrong: {share:.1%}"
    out.print(plain_text(headline, "bold"))
    table = plain_table()
    headings, rows = table_of(document)
    for name in headings:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for cells in rows:
        table.add_row(*cells)
    # Figures are never cut, even where the terminal is narrower than the table.
    out.print(table, width=max(out.width, 78), crop=False, no_wrap=True, overflow="ignore")
