"""`noisesieve apply`: decisions → a corrected dataset."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisesieve.cli import options as o
from noisesieve.cli.signals import running
from noisesieve.cli.terminal import console, print_json, print_line, results
from noisesieve.core.command_settings import ApplySettings
from noisesieve.core.options import build_settings

if TYPE_CHECKING:
    from noisesieve.commands.apply import AppliedDecisions

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
        found = apply_decisions(run, settings, session=session)
    with results():
        if as_json:
            print_json(found.to_document())
        elif quiet:
            print_line(found.output)
        else:
            _show(found)


def _show(found: AppliedDecisions) -> None:
    from noisesieve.cli.terminal import plain_table, plain_text

    out = console(stderr=False)
    out.print(
        plain_text(
            f"decided {found.decided:,}: changed {found.changed:,}, left out {found.left_out:,}, "
            f"kept {found.decisions.get('keep', 0):,}; suspects still open: {found.open:,}",
            "bold",
        )
    )
    if automatic := found.decisions.get("accept (automatic)"):
        out.print(plain_text(f"{automatic:,} of these were accepted by --accept-above, without review."))
    if untouched := found.decisions.get("accept (untouched)"):
        out.print(plain_text(f"{untouched:,} of these are noisesieve's own tags, not edited: were they reviewed?"))
    if found.undecided:
        out.print(plain_text(f"Entries without a decision, which keep their label: {found.undecided:,}"))
    if found.moves:
        table = plain_table()
        for name in ("was", "is"):
            table.add_column(name, overflow="fold")
        table.add_column("rows", justify="right")
        for move in found.moves[:MOVES_SHOWN]:
            table.add_row(plain_text(move.old), plain_text(move.new), f"{move.count:,}")
        out.print()
        out.print(table)
        if len(found.moves) > MOVES_SHOWN:
            out.print(plain_text(f"and {len(found.moves) - MOVES_SHOWN:,} more in {found.summary}", "dim"))
        out.print()
    if found.earlier:
        out.print(plain_text(f"{found.earlier:,} decisions that the run was scanned with are applied, too."))
    if found.waived:
        out.print(plain_text(f"{found.waived:,} kept labels have a waiver now: commit the file."))
    for note in found.notes:
        out.print(plain_text(note))
    out.print(plain_text(f"{found.examples:,} rows in {found.output}"), soft_wrap=True)
    out.print(plain_text(f"audit log: {found.audit}"), soft_wrap=True)
    if found.kept_in is not None:
        out.print(plain_text(f"decisions, which the next scan trusts: {found.kept_in}"), soft_wrap=True)
    out.print(plain_text("Next:"))
    command = shlex.join(["noisesieve", "scan", found.output, *found.scan])
    out.print(plain_text(f"  {command}"), soft_wrap=True)
