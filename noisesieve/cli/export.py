"""The options and output of `noisesieve export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from noisesieve.cli import options as o
from noisesieve.cli.signals import watched
from noisesieve.cli.terminal import console, results
from noisesieve.core.settings import ExportSettings

To = Annotated[
    str,
    typer.Option("--to", help="csv, jsonl, label-studio, cvat, fiftyone, huggingface or folder.", show_default=False),
]
Result = Annotated[Path | None, o.option("File or folder to write. Default: in the run folder.", "--output", "-o")]
Only = Annotated[str, typer.Option(help="corrupted, clean (the filtered training set) or all.")]
Top = Annotated[int | None, o.option("Only this many rows, the most suspicious.")]
Least = Annotated[float | None, o.option("Only rows whose label is wrong with at least this probability.")]
Files = Annotated[str, typer.Option(help="huggingface and folder: link or copy the images.")]
Prefix = Annotated[str, typer.Option(help="label-studio: prefix of every image's path.")]


def export(
    run: o.Run,
    to: To,
    output: Result = None,
    only: Only = "corrupted",
    top: Top = None,
    min_probability: Least = None,
    files: Files = "link",
    image_prefix: Prefix = ExportSettings.image_prefix,
    data: o.MovedData = None,
    root: o.MovedRoot = None,
    force: o.Overwrite = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Export rows of a run for an annotation tool, a notebook or a training. Nothing is written into the dataset.

    Example: noisesieve export my-run --to label-studio --min-probability 0.5
    """
    settings = ExportSettings(
        to, output, only, top, min_probability, files, image_prefix, data=data, root=root, force=force
    )
    from noisesieve.commands.export import export as export_rows

    with watched(quiet) as (watcher, pause):
        document = export_rows(run, settings, watcher=watcher, pause=pause)
    with results():
        if as_json:
            print(json.dumps(document))
        elif quiet:
            print(document["output"])
        else:
            from noisesieve.cli.terminal import plain_text

            out = console(stderr=False)
            rows = "1 row" if document["rows"] == 1 else f"{document['rows']:,} rows"
            out.print(plain_text(f"{rows} written to {document['output']}"), soft_wrap=True)
            for note in document["notes"]:
                out.print(plain_text(f"  {note}"), soft_wrap=True)
