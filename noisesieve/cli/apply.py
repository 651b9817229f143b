"""`noisesieve apply`: decisions → a corrected dataset."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from noisesieve.cli import options as o
from noisesieve.cli.signals import running
from noisesieve.cli.terminal import console, results
from noisesieve.core.command_settings import ApplySettings
from noisesieve.core.files import Json
from noisesieve.core.options import build_settings

MOVES_SHOWN = 10

Decisions = Annotated[
    list[Path] | None,
    typer.Argument(
        help="decisions.csv of the review page, a table of path and label, or an export of Label Studio or CVAT.",
        metavar="[DECISIONS]...",
        show_default=False,
    ),
]


@o.with_options(ApplySettings)
def apply(
    run: o.Run,
    decisions: Decisions = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """Write a corrected dataset from decisions, with an audit log. The dataset itself is never changed.

    Example: noisesieve apply my-run decisions.csv -o corrected.csv
    """
    settings = build_settings(ApplySettings, {**options, "decisions": tuple(decisions or ())})
    from noisesieve.commands.apply import apply as apply_decisions

    with running(quiet) as session:
        document = apply_decisions(run, settings, session=session)
    with results():
        if as_json:
            print(json.dumps(document))
        elif quiet:
            print(document["output"])
        else:
            _show(document)


def _show(document: Json) -> None:
    from noisesieve.cli.terminal import plain_table, plain_text

    out = console(stderr=False)
    out.print(
        plain_text(
            f"decided {document['decided']:,}: changed {document['changed']:,}, left out {document['left_out']:,}, "
            f"kept {document['decisions'].get('keep', 0):,}; suspects still open: {document['open']:,}",
            "bold",
        )
    )
    if automatic := document["decisions"].get("accept (automatic)"):
        out.print(plain_text(f"{automatic:,} of these were accepted by --accept-above, without review."))
    if untouched := document["decisions"].get("accept (untouched)"):
        out.print(plain_text(f"{untouched:,} of these are noisesieve's own tags, not edited: were they reviewed?"))
    if document["undecided"]:
        out.print(plain_text(f"Entries without a decision, which keep their label: {document['undecided']:,}"))
    if document["moves"]:
        table = plain_table()
        for name in ("was", "is"):
            table.add_column(name, overflow="fold")
        table.add_column("rows", justify="right")
        for move in document["moves"][:MOVES_SHOWN]:
            table.add_row(plain_text(move["from"]), plain_text(move["to"]), f"{move['count']:,}")
        out.print()
        out.print(table)
        if len(document["moves"]) > MOVES_SHOWN:
            out.print(plain_text(f"and {len(document['moves']) - MOVES_SHOWN:,} more in {document['summary']}", "dim"))
        out.print()
    for note in document["notes"]:
        out.print(plain_text(note))
    out.print(plain_text(f"{document['examples']:,} rows in {document['output']}"), soft_wrap=True)
    out.print(plain_text(f"audit log: {document['audit']}"), soft_wrap=True)
    out.print(plain_text("Next:"))
    command = shlex.join(["noisesieve", "scan", document["output"], *document["scan"]])
    out.print(plain_text(f"  {command}"), soft_wrap=True)
