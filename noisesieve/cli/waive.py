"""The options and output of `noisesieve waive`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noisesieve.cli import options as o
from noisesieve.cli.signals import running
from noisesieve.cli.terminal import print_json, print_line, results
from noisesieve.commands.command_settings import WaiveSettings
from noisesieve.core.errors import UsageError
from noisesieve.core.options import build_settings

Source = Annotated[Path, typer.Argument(help="A run folder, or a report that `check` wrote.", metavar="RUN_OR_REPORT")]
DECISION_FILES = (".csv", ".tsv", ".json", ".xml")
Names = Annotated[
    list[str] | None,
    typer.Argument(help="Ids or paths of reviewed rows.", metavar="[PATH]...", show_default=False),
]


@o.with_options(WaiveSettings)
def waive(
    source: Source,
    names: Names = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """Record that labels were reviewed and are right: `check` and `scan` then do not count these rows.

    A waiver is valid for this image content with this label. If either changes, it ends.

    Example: noisesieve waive my-run cat/0012.jpg --reason "a tabby, seen from behind"
    """
    names = names or []
    if options.get("decisions"):  # `--decisions a.csv b.csv`, as in every command
        files = [name for name in names if Path(name).suffix.lower() in DECISION_FILES and Path(name).is_file()]
        names = [name for name in names if name not in files]
        options = o.with_more_decisions(options, [Path(name) for name in files])
    settings = build_settings(WaiveSettings, options)
    if not names and not settings.decisions:
        raise UsageError("No rows.", "Name them, or give the decisions: waive RUN --decisions decisions.csv")
    if names and not settings.reason.strip():
        raise UsageError("--reason is missing.", "Say why the labels are right: others will read it.")
    from noisesieve.commands.waive import waive as waive_rows

    with running(quiet, hint="Nothing was written.") as session:
        result = waive_rows(source, names, settings, session=session)
    file = settings.file
    with results():
        if as_json:
            waived = [vars(waiver) for waiver in result.waivers]
            print_json({"file": str(file), "waived": waived, "added": result.added})
        elif quiet:
            print_line(file)
        else:
            print_line(f"{len(result.waivers):,} waived ({result.added:,} new) in {file}: commit it with the dataset.")
