"""`noisesieve review`: the page on which people decide."""

from __future__ import annotations

import json
import shlex
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from noisesieve.cli import options as o
from noisesieve.cli.stop import watched
from noisesieve.cli.terminal import results
from noisesieve.errors import OutputError, UsageError
from noisesieve.settings import ReviewSettings

Page = Annotated[Path | None, o.option("Where the page goes; else review.html in the run folder.", "--output", "-o")]
Open = Annotated[bool, o.option("Open it in the browser.", "--open")]
Limit = Annotated[int, typer.Option(help="Suspects on the page, the most suspicious.")]


def review(
    run: o.Run,
    output: Page = None,
    open_it: Open = False,
    limit: Limit = ReviewSettings.limit,
    data: o.MovedData = None,
    root: o.MovedRoot = None,
    force: o.Overwrite = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Write a page of the suspects that opens from disk: look, decide by key, download decisions.csv for `apply`.

    Example: noisesieve review my-run --open
    """
    if limit < 1:
        raise UsageError(f"--limit {limit}: must be at least 1.")
    from noisesieve import handover
    from noisesieve.reopen import index_of
    from noisesieve.report import read_report

    report = read_report(run)
    out = output or report.path.parent / "review.html"
    handover.refuse_dataset(report, out, data, root)
    if output is not None and output.exists() and not force:
        raise OutputError(f"{output}: is there already.", "Choose another name with -o, or pass --force.")
    index = index_of(report, data, root)
    with watched(quiet) as (watcher, pause):
        handover.review(report, index, out, limit=limit, watcher=watcher, pause=pause)
    suspects = len(report.corrupted)
    with results():
        if as_json:
            print(json.dumps({"output": str(out), "suspects": suspects, "shown": min(limit, suspects)}))
        elif quiet:
            print(out)
        else:
            more = f" (--limit {suspects} shows all)" if suspects > limit else ""
            print(
                f"{min(limit, suspects):,} of {suspects:,} suspects{more}, {out.stat().st_size / 2**20:.1f} MiB: {out}"
            )
            print("When you have decided, download decisions.csv there, and:")
            print(f"  {shlex.join(['noisesieve', 'apply', str(run), 'decisions.csv', '-o', 'corrected.csv'])}")
    if open_it and not webbrowser.open(out.resolve().as_uri()):
        watcher.warn(f"No browser answers here: open {out} yourself.")
