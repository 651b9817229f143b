"""The options and output of `noisesieve export`."""

from __future__ import annotations

from noisesieve.cli import options as o
from noisesieve.cli.signals import running
from noisesieve.cli.terminal import console, print_json, print_line, results
from noisesieve.commands.command_settings import ExportSettings
from noisesieve.core.options import build_settings


@o.with_options(ExportSettings)
def export(
    run: o.Run,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """Export rows of a run for an annotation tool, a notebook or a training. Nothing is written into the dataset.

    Example: noisesieve export my-run --to label-studio --min-probability 0.5
    """
    settings = build_settings(ExportSettings, options)
    from noisesieve.commands.export import export as export_rows

    with running(quiet) as session:
        exported = export_rows(run, settings, session=session)
    with results():
        if as_json:
            print_json(exported)
        elif quiet:
            print_line(exported.output)
        else:
            from noisesieve.cli.terminal import plain_text

            out = console(stderr=False)
            rows = "1 row" if exported.rows == 1 else f"{exported.rows:,} rows"
            out.print(plain_text(f"{rows} written to {exported.output}"), soft_wrap=True)
            for note in exported.notes:
                out.print(plain_text(f"  {note}"), soft_wrap=True)
