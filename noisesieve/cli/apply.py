"""`noisesieve apply`: decisions → a corrected dataset."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisesieve.cli import options as o
from noisesieve.cli.signals import running
from noisesieve.cli.terminal import console, print_json, print_line, results
from noisesieve.commands.command_settings import ApplySettings
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
        applied = apply_decisions(run, settings, session=session)
    with results():
        if as_json:
            print_json(applied.to_document())
        elif quiet:
            print_line(applied.output)
        else:
            _show(applied)


def _show(applied: AppliedDecisions) -> None:
    from noisesieve.cli.terminal import plain_table, plain_text

    out = console(stderr=False)
    out.print(
        plain_text(
            f"decided {applied.decided:,}: changed {applied.changed:,}, left out {applied.left_out:,}, "
            f"kept {applied.decisions.get('keep', 0):,}; suspects still open: {applied.open:,}",
            "bold",
        )
    )
    if automatic := applied.decisions.get("accept (automatic)"):
        out.print(plain_text(f"{automatic:,} of these were accepted by --accept-above, without review."))
    if untouched := applied.decisions.get("accept (untouched)"):
        out.print(plain_text(f"{untouched:,} of these are noisesieve's own tags, not edited: were they reviewed?"))
    if applied.undecided:
        out.print(plain_text(f"Entries without a decision, which keep their label: {applied.undecided:,}"))
    if applied.moves:
        table = plain_table()
        for name in ("was", "is"):
            table.add_column(name, overflow="fold")
        table.add_column("rows", justify="right")
        for move in applied.moves[:MOVES_SHOWN]:
            table.add_row(plain_text(move.old), plain_text(move.new), f"{move.count:,}")
        out.print()
        out.print(table)
        if len(applied.moves) > MOVES_SHOWN:
            out.print(plain_text(f"and {len(applied.moves) - MOVES_SHOWN:,} more in {applied.summary}", "dim"))
        out.print()
    if applied.earlier:
        out.print(plain_text(f"{applied.earlier:,} decisions that the run was scanned with are applied, too."))
    if applied.waived:
        out.print(plain_text(f"{applied.waived:,} kept labels have a waiver now: commit the file."))
    for note in applied.notes:
        out.print(plain_text(note))
    out.print(plain_text(f"{applied.examples:,} rows in {applied.output}"), soft_wrap=True)
    out.print(plain_text(f"audit log: {applied.audit}"), soft_wrap=True)
    if applied.kept_in is not None:
        out.print(plain_text(f"decisions, which the next scan trusts: {applied.kept_in}"), soft_wrap=True)
    out.print(plain_text("Next:"))
    command = shlex.join(["noisesieve", "scan", applied.output, *applied.scan])
    out.print(plain_text(f"  {command}"), soft_wrap=True)
