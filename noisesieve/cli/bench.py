"""The options and output of `noisesieve bench`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from noisesieve.cli import options as o
from noisesieve.cli.signals import running
from noisesieve.cli.terminal import console, print_json, print_line, results
from noisesieve.commands.measure_settings import BenchSettings, TestSettings
from noisesieve.core.errors import OutputError, UsageError
from noisesieve.core.options import NETWORK, OUTPUT, build_settings

if TYPE_CHECKING:
    from noisesieve.commands.bench import AblationTable, BenchTable

JsonFile = Annotated[
    Path | None, o.extra("Also write the JSON document to this file.", "--output", "-o", group=OUTPUT, metavar="FILE")
]
MarkdownFile = Annotated[
    Path | None, o.extra("Write the table as Markdown to this file.", "--markdown", group=OUTPUT, metavar="FILE")
]
Ablation = Annotated[
    bool, o.extra("Run the paper's ablation: test accuracy of five trainings.", "--ablation", group=NETWORK)
]
NOT_OF_BENCH = (
    *("output", "review", "probabilities", "force", "waivers", "trusted_column", "score_pass"),
    *("cache_budget", "max_pixels"),
)


@dataclass(frozen=True)
class BenchOptions(BenchSettings):
    """The options of `bench`: also a test set, for --ablation."""

    test: TestSettings = field(default_factory=TestSettings)


@o.with_options(BenchOptions, without=NOT_OF_BENCH)
def bench(
    data: o.Data,
    ablation: Ablation = False,
    output: JsonFile = None,
    markdown: MarkdownFile = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """Measure noisesieve and its peers with the same images, backbone, schedule and seed. The truth must be known.

    Seconds include training and scoring, passes are over the training data; decoding is shared. Up to the end of the
    warm-up all methods train with plain cross-entropy: this runs once and counts for each. cleanlab is installed with
    `pip install cleanlab scikit-learn`. With --ablation a test set with right labels is needed instead of the truth.

    Example: noisesieve bench noisy.csv --truth-column true_label --methods noisesieve,ce
    """
    if ablation and "weights" not in options and "freeze" not in options:
        options["weights"] = "none"  # whole networks are trained
    settings = build_settings(BenchOptions, {"path": data, "limit_seed": options.get("seed", 0), **options})
    test = settings.test.source
    for target in (output, markdown):
        if target is not None:
            _refuse_target(target, data)
    if output is not None and output == markdown:
        raise UsageError(f"--output and --markdown are both {output}.", "Give two files.")
    if ablation != (test is not None):
        raise UsageError("--ablation and --test need each other.", "Give a dataset with right labels with --test.")
    from noisesieve.commands._ablation import ablate
    from noisesieve.commands.bench import BenchTable, as_markdown, to_document
    from noisesieve.commands.bench import bench as run_bench
    from noisesieve.core.files import atomic_write, write_json

    with running(quiet, hint="A bench does not resume: nothing was written.") as session:
        table: BenchTable | AblationTable
        table = ablate(settings, test, session=session) if test else run_bench(settings, session=session)
    with results():
        if as_json:
            print_json(to_document(table))
        elif not quiet:
            _show(table)
        elif isinstance(table, BenchTable):
            for row in table.methods:
                print_line(f"{row.method} F1 {row.f1:.3f} AP {row.average_precision:.3f}")
        else:
            for training in table.methods:
                print_line(f"{training.method} accuracy {training.accuracy:.3f}")
    if output is not None:
        write_json(output, to_document(table))
        session.note(f"Written to {output}.")
    if markdown is not None:
        with atomic_write(markdown) as file:
            file.write(as_markdown(table).encode())
        session.note(f"Written to {markdown}.")


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


def _show(measured: BenchTable | AblationTable) -> None:
    from noisesieve.cli.terminal import plain_table, plain_text

    out = console(stderr=False)
    out.print(plain_text(measured.headline, "bold"))
    table = plain_table()
    for name in measured.headings:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in measured.methods:
        table.add_row(*row.cells())
    # Figures are never cut, even where the terminal is narrower than the table.
    out.print(table, width=max(out.width, 78), crop=False, no_wrap=True, overflow="ignore")
