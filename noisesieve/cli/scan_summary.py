"""The output at the end of a scan: noise rate, classes, confusions, suspects, files, next commands."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table

from noisesieve.cli.terminal import plain_table, plain_text
from noisesieve.report.headline import budget_sentence, flagged_sentence, noise_rate_sentence, nothing_flagged_sentence
from noisesieve.report.summary import ClassFlagged, Confusion, Groups, Summary, TopSuspect

CLASSES_SHOWN = 20
CONFUSIONS_SHOWN = 5
SAMPLE = 30  # rows of a random sample that a person decides in a few minutes


def print_summary(out: Console, summary: Summary, folder: Path, *, truth: bool = False) -> None:
    """Print the summary of a run and the next commands."""
    vague = summary.estimated_noise_rate.is_vague
    out.print(plain_text(flagged_sentence(summary), "bold"))
    for sentence in (noise_rate_sentence(summary), budget_sentence(summary), nothing_flagged_sentence(summary)):
        if sentence:
            out.print(plain_text(sentence))
    for line in _asides(summary):
        out.print(plain_text(line))
    _section(out, "Flagged by class, highest share first", _classes(summary.classes, vague=vague))
    if summary.groups is not None:
        _section(out, f"By {summary.groups.column}, highest noise rate first", _groups(summary.groups))
    if summary.confusions:
        _section(out, "Most frequent confusions", _confusions(summary.confusions))
    if summary.suspects:
        _section(out, "Most suspicious rows", _suspects(summary.suspects, vague=vague))
    out.print()
    written = sorted(file.name for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    out.print(plain_text(f"Written to {folder}:"), soft_wrap=True)
    out.print(plain_text(f"  {', '.join(written)}"))
    where = shlex.quote(str(folder))
    steps = [("Look at the suspects and decide:", f"review {where} --open")] if summary.suspects else []
    if truth:
        steps.append(("Measure precision and recall by the right labels:", f"evaluate {where}"))
    elif summary.flagged.of:
        sample = min(SAMPLE, summary.flagged.of)
        steps.append(("Measure precision and recall by a random sample:", f"review {where} --probe {sample} --open"))
    for why, command in steps:
        out.print(plain_text(why))
        out.print(plain_text(f"  noisesieve {command}"), soft_wrap=True)


def _asides(summary: Summary) -> list[str]:
    lines = []
    if summary.unreadable:
        lines.append(f"{_images(summary.unreadable)} cannot be read; the reason is in the column status.")
    if waived := summary.waived:
        lines.append(f"{waived:,} more {'is' if waived == 1 else 'are'} waived: reviewed and not counted.")
    if summary.undecided:
        lines.append(f"{summary.undecided:,} rows have a margin of zero within rounding.")
    if conflicting := summary.duplicates.with_different_labels:
        lines.append(
            f"In the dataset more than once, with different labels: {_images(conflicting)} (see summary.json)."
        )
    elif again := summary.duplicates.groups:
        lines.append(f"In the dataset more than once: {_images(again)}.")
    if rare := sum(row.low_evidence for row in summary.classes):
        lines.append(f"{rare:,} classes have fewer than 10 examples: low evidence.")
    return lines


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"


def _classes(rows: list[ClassFlagged], *, vague: bool) -> Table:
    table = plain_table()
    table.add_column("class")
    for name in ("flagged", "of", "share", *([] if vague else ["expected wrong"])):
        table.add_column(name, justify="right", no_wrap=True)
    ordered = sorted(rows, key=lambda row: -(row.share or 0))
    for row in ordered[:CLASSES_SHOWN]:
        share = "" if row.share is None else f"{row.share:.1%}"
        expected = [] if vague else [f"{row.expected_wrong:,.0f}"]
        table.add_row(plain_text(row.label), f"{row.rows:,}", f"{row.of:,}", share, *expected)
    if len(rows) > CLASSES_SHOWN:
        table.caption = f"and {len(rows) - CLASSES_SHOWN:,} more classes in summary.json"
    return table


def _groups(groups: Groups) -> Table:
    table = plain_table()
    table.add_column(plain_text(groups.column), overflow="fold")
    for name in ("flagged", "of", "expected wrong", "noise rate"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in groups.values[:CLASSES_SHOWN]:
        counts = f"{row.rows:,}", f"{row.of:,}", f"{row.expected_wrong:,.0f}", f"{row.estimated_noise_rate:.1%}"
        table.add_row(plain_text(row.value), *counts)
    if len(groups.values) > CLASSES_SHOWN:
        table.caption = f"and {len(groups.values) - CLASSES_SHOWN:,} more in summary.json"
    return table


def _confusions(rows: list[Confusion]) -> Table:
    table = plain_table()
    for name in ("given", "looks like"):
        table.add_column(name)
    table.add_column("rows", justify="right", no_wrap=True)
    for row in rows[:CONFUSIONS_SHOWN]:
        table.add_row(plain_text(row.given), plain_text(row.suggested), f"{row.count:,}")
    return table


def _suspects(rows: list[TopSuspect], *, vague: bool) -> Table:
    table = plain_table()
    table.add_column("id", overflow="fold")
    for name in ("given", "looks like"):
        table.add_column(name)
    if not vague:
        table.add_column("P(wrong)", justify="right", no_wrap=True)
    for row in rows:
        looks_like = "?" if row.suggested_label is None else row.suggested_label
        chance = row.corruption_probability
        shown = f"{chance:.3f}" if chance < 0.9995 else ">0.999"  # an estimate is never certain
        table.add_row(plain_text(row.id), plain_text(row.label), plain_text(looks_like), *([] if vague else [shown]))
    return table


def _section(out: Console, title: str, table: Table) -> None:
    out.print()
    out.print(plain_text(title, "bold"))
    out.print(table)
