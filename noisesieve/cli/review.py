"""The options and output of `noisesieve review`."""

from __future__ import annotations

import shlex
import webbrowser
from typing import Annotated

from noisesieve.cli import options as o
from noisesieve.cli.signals import running
from noisesieve.cli.terminal import print_json, print_line, results
from noisesieve.commands.command_settings import ReviewSettings
from noisesieve.core.options import OUTPUT, build_settings

Open = Annotated[bool, o.extra("Open the page in the browser.", "--open", group=OUTPUT)]


@o.with_options(ReviewSettings)
def review(
    run: o.Run,
    open_it: Open = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """Write a page of the suspects that opens from disk: decide by key, then download decisions.csv for `apply`.

    Example: noisesieve review my-run --open
    """
    settings = build_settings(ReviewSettings, options)
    from noisesieve.commands.review import review as review_run

    with running(quiet) as session:
        result = review_run(run, settings, session=session)
    page, suspects = result.page, result.suspects
    with results():
        if as_json:
            counts = {"suspects": suspects, "shown": result.shown, "sample": result.sample}
            print_json({"output": str(page), **counts})
        elif quiet:
            print_line(page)
        else:
            more = f" (--limit {suspects} shows all)" if suspects > settings.limit else ""
            size = page.stat().st_size / 2**20
            print_line(f"{result.shown:,} of {suspects:,} suspects{more}, {size:.1f} MiB: {page}")
            if unlikely := result.flagged - suspects:
                less = f"{settings.min_probability:.0%} (--min-probability 0 shows them too)"
                print_line(
                    f"{unlikely:,} more {'is' if unlikely == 1 else 'are'} flagged, but wrong with less than {less}."
                )
            if result.sample:
                print_line(
                    f"A random sample of {result.sample:,} rows comes first. Decide all of it, then measure the run:"
                )
                print_line(f"  {shlex.join(['noisesieve', 'evaluate', str(run), '--decisions', 'decisions.csv'])}")
            print_line("When you have decided, download decisions.csv from the page, then run:")
            print_line(f"  {shlex.join(['noisesieve', 'apply', str(run), 'decisions.csv', '-o', 'corrected.csv'])}")
    if open_it and not webbrowser.open(page.resolve().as_uri()):
        session.warn(f"No browser could be started: open {page} yourself.")
