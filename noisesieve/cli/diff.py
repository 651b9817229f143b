"""The options and output of `noisesieve diff`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisesieve.cli import options as o
from noisesieve.cli.terminal import console, print_json, results

if TYPE_CHECKING:
    from noisesieve.commands.diff import ChangedSuspect, RunComparison, SuspectCount

LISTED = 5
WORDS = {
    "new": "new suspects",
    "fixed": "fixed: the label changed, not a suspect any more",
    "decided": "decided: a person has decided since",
    "cleared": "cleared: same label, not a suspect any more",
    "waived": "waived: reviewed, the label is right",
    "gone": "gone: not in the dataset any more, or unreadable",
    "persistent": "persistent: suspects in both runs",
}

Before = Annotated[Path, typer.Argument(help="The earlier run folder, or a report.", metavar="RUN_A")]
After = Annotated[Path, typer.Argument(help="The later run folder, or a report.", metavar="RUN_B")]


def diff(
    before: Before,
    after: After,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    config: o.Config = None,
) -> None:
    """Compare two runs of a dataset: which suspects are new, fixed, decided, gone or persistent, and rates by class.

    Rows are matched by id and path, and by content if a file was moved.

    Example: noisesieve diff run-monday run-friday
    """
    from noisesieve.commands.diff import diff as compare_runs

    comparison = compare_runs(before, after)
    with results():
        if as_json:
            print_json(comparison)
        else:
            _show(comparison, quiet=quiet)


def _show(comparison: RunComparison, *, quiet: bool) -> None:
    from noisesieve.cli.terminal import plain_table, plain_text

    out = console(stderr=False)
    then, now = comparison.before, comparison.after
    out.print(
        plain_text(
            f"{then.suspects:,} suspects of {then.examples:,} before, {now.suspects:,} of {now.examples:,} "
            f"after; {comparison.matched:,} rows matched, {comparison.relabelled:,} of them relabelled",
            "bold",
        )
    )
    if then.method != now.method:
        text = (
            f"They were decided by different methods ({then.method} and {now.method}): suspects differ for that, too."
        )
        out.print(plain_text(text))
    for kind, words in WORDS.items():
        rows = comparison.suspects[kind]
        out.print(plain_text(f"{len(rows):>7,}  {words}"))
        if not quiet and kind != "persistent":
            for row in rows[:LISTED]:
                out.print(plain_text(f"           {_line(row)}"), soft_wrap=True)
    if quiet:
        return
    out.print()
    table = plain_table()
    table.add_column("class", overflow="fold")
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    for group in comparison.classes:
        table.add_row(plain_text(group.label), _rate(group.before), _rate(group.after))
    out.print(table)


def _line(row: ChangedSuspect) -> str:
    if row.before is not None and row.after is not None and row.before != row.after:
        return f"{row.id}: {row.before} → {row.after}"
    looks_like = f", looks like {row.suggested_label}" if row.suggested_label else ""
    return f"{row.id}: {row.after or row.before}{looks_like}"


def _rate(counts: SuspectCount) -> str:
    if not counts.of:
        return "–"
    return f"{counts.corrupted / counts.of:.1%} ({counts.corrupted:,} of {counts.of:,})"
