"""The options and output of `noisesieve check`."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisesieve.cli import options as o
from noisesieve.cli.signals import running
from noisesieve.cli.terminal import console, print_json, print_line, results, say_command
from noisesieve.commands.command_settings import CheckSettings
from noisesieve.core.errors import OutputError
from noisesieve.core.files import Document
from noisesieve.core.options import GATE, OUTPUT, build_settings

if TYPE_CHECKING:
    from rich.console import Console

    from noisesieve.commands.check import CheckResult, GateResult

SUSPECTS_SHOWN = 5
GROUPS_SHOWN = 15

Batch = Annotated[
    Path, typer.Argument(help="An image folder, or a .csv, .tsv, .jsonl or .parquet table.", metavar="BATCH")
]
Junit = Annotated[Path | None, o.extra("Write JUnit XML.", group=OUTPUT, metavar="FILE")]
Sarif = Annotated[Path | None, o.extra("Write SARIF 2.1.0.", group=OUTPUT, metavar="FILE")]
Markdown = Annotated[Path | None, o.extra("Write Markdown.", group=OUTPUT, metavar="FILE")]
ExitZero = Annotated[bool, o.extra("Exit 0 even if the gate fails.", "--exit-zero", group=GATE)]


@o.with_options(CheckSettings, without=("trusted_column", "cache_budget", "max_pixels"))
def check(
    batch: Batch,
    exit_zero: ExitZero = False,
    junit: Junit = None,
    sarif: Sarif = None,
    markdown: Markdown = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """Score a new batch with the model of a scan, without training, and pass or fail it: exit 0 or 1.

    Example: noisesieve check ./new-batch --model my-run --max-corrupted 5%
    """
    settings = build_settings(CheckSettings, {"path": batch, **options})
    from noisesieve.commands.check import check as run

    token = secrets.token_hex(16)
    if _on_github():
        say_command(f"::stop-commands::{token}")  # names and labels are printed from here on, and may be hostile
    with running(quiet, hint="The batch was not checked.") as session:
        checked = run(settings, session=session)
    path = os.path.relpath(batch, os.environ.get("GITHUB_WORKSPACE") or os.getcwd())
    result = checked.gate_result(str(batch), path, _notes(checked))
    _write(result, junit=junit, sarif=sarif, markdown=markdown)
    with results():
        if as_json:
            print_json(document(checked, result))
        elif quiet:
            print_line("passed" if checked.passed else "failed")
        else:
            _show(console(stderr=False), checked, result)
        if _on_github():
            sys.stdout.flush()
            say_command(f"::{token}::")
            _write_github(result, to_stderr=as_json)
    if not checked.passed and not exit_zero:
        raise typer.Exit(1)


def _notes(checked: CheckResult) -> list[str]:
    batch, notes = checked.batch, []
    if checked.base_rate is not None:
        notes.append(f"For comparison: of the clean rows of its own scan, the model flags {checked.base_rate:.1%}.")
    if batch.in_training:
        notes.append(f"{_rows(batch.in_training)} also in the training data: their scores are in-sample.")
    if batch.unreadable:
        listed = ", ".join(f"{row.id} ({row.status})" for row in checked.unreadable_rows[:5])
        notes.append(f"Cannot be read: {listed}{', …' if batch.unreadable > 5 else ''}.")
    if batch.waived:
        notes.append(f"{_rows(batch.waived)} waived and not counted.")
    if batch.unknown:
        names = ", ".join(f"{label!r} ({count:,})" for label, count in list(batch.unknown.items())[:10])
        notes.append(f"Classes that the model does not have, not scored: {names}.")
    return notes


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"


def _write(result: GateResult, **targets: Path | None) -> None:
    from noisesieve.commands.check import render_result
    from noisesieve.core.files import atomic_write

    for kind, target in targets.items():
        if target is not None:
            with atomic_write(target) as file:
                file.write(render_result(result, kind))


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _write_github(result: GateResult, *, to_stderr: bool) -> None:
    """Print GitHub's annotations and append to the step summary."""
    from noisesieve.commands.check import github_commands, github_summary

    for line in github_commands(result):
        if to_stderr:
            say_command(line)  # standard output is one JSON document; GitHub reads both streams
        else:
            print(line)
    if target := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with open(target, "a", encoding="utf-8") as file:
                file.write(github_summary(result))
        except OSError as error:
            raise OutputError(
                f"{target}: cannot be written: {error.strerror}.", "Check $GITHUB_STEP_SUMMARY."
            ) from error


def document(checked: CheckResult, result: GateResult) -> Document:
    """Return the document for --json."""
    batch = checked.batch
    return {
        "batch": result.name,
        "passed": checked.passed,
        "rules": [vars(rule) for rule in checked.rules],
        "examples": batch.examples,
        "scored": batch.scored,
        "flagged": batch.flagged,
        "corrupted": batch.corrupted,
        "waived": batch.waived,
        "unreadable": batch.unreadable,
        "unreadable_rows": [vars(row) for row in checked.unreadable_rows],
        "in_training": batch.in_training,
        "unknown": batch.unknown,
        "base_rate": checked.base_rate,
        "classes": [{"label": label, "corrupted": hits, "of": total} for label, (hits, total) in batch.classes.items()],
        "groups": None if checked.groups is None else [vars(row) for row in checked.groups],
        "suspects": [vars(row) for row in result.suspects[:10]],
        "notes": result.notes,
    }


def _show(out: Console, checked: CheckResult, result: GateResult) -> None:
    from noisesieve.cli.terminal import plain_table, plain_text

    batch = checked.batch
    out.print(plain_text(result.headline, "bold green" if checked.passed else "bold red"))
    if unlikely := batch.flagged - batch.corrupted:
        count = f"{unlikely:,} more {'is' if unlikely == 1 else 'are'} flagged"
        out.print(
            plain_text(f"{count}, but right with more than {1 - checked.min_probability:.0%}: not counted.", "dim")
        )
    table = plain_table()
    for name in ("rule", "limit", "measured", ""):
        table.add_column(name, overflow="fold")
    for rule in checked.rules:
        mark = plain_text("pass", "green") if rule.passed else plain_text("FAIL", "red")
        table.add_row(rule.name, rule.limit, plain_text(rule.measured), mark)
    out.print(table)
    for note in result.notes:
        out.print(plain_text(note, "dim"))
    if result.suspects:
        out.print()
        table = plain_table()
        table.add_column("most suspicious", overflow="fold")
        for name in ("given", "looks like"):
            table.add_column(name)
        table.add_column("P(wrong)", justify="right")
        for row in result.suspects[:SUSPECTS_SHOWN]:
            cells = (row.path or row.id, row.label, row.suggested_label or "?")
            table.add_row(*map(plain_text, cells), f"{row.corruption_probability:.3f}")
        out.print(table)
    if checked.groups is not None:
        out.print()
        table = plain_table()
        table.add_column("group", overflow="fold")
        for name in ("suspects", "of", "share", "95 %", "expected wrong"):
            table.add_column(name, justify="right")
        for group in checked.groups[:GROUPS_SHOWN]:
            interval = f"{group.low:.0%} – {group.high:.0%}"
            counts = f"{group.corrupted:,}", f"{group.of:,}", f"{group.share:.1%}", interval
            table.add_row(plain_text(group.value), *counts, f"{group.expected_wrong:,.0f}")
        if len(checked.groups) > GROUPS_SHOWN:
            table.caption = f"and {len(checked.groups) - GROUPS_SHOWN:,} more with --json"
        out.print(table)
