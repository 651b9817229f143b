"""The options and output of `noisesieve evaluate`."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from noisesieve.cli import options as o
from noisesieve.cli.signals import RESUMES, running
from noisesieve.cli.terminal import console, print_json, results
from noisesieve.core.measure_settings import EvaluateSettings
from noisesieve.core.options import build_settings

if TYPE_CHECKING:
    from rich.console import Console

    from noisesieve.commands.evaluate import Evaluation, PlantedEvaluation

CLASSES_SHOWN = 20


@o.with_options(EvaluateSettings)
def evaluate(
    run: o.Run,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """Measure precision, recall, ranking and calibration of a run against right labels.

    Without --truth and --truth-column the column `true_label` is used, as `inject` writes it.

    Example: noisesieve evaluate my-run --truth truth.csv
    """
    settings = build_settings(EvaluateSettings, options)
    from noisesieve.commands.evaluate import Evaluation
    from noisesieve.commands.evaluate import evaluate as evaluate_run

    with running(quiet, hint=RESUMES) as session:
        found = evaluate_run(run, settings, session=session)
    with results():
        if as_json:
            print_json(found)
        elif isinstance(found, Evaluation):
            _show(console(stderr=False), found, quiet=quiet)
        else:
            _show_planted(console(stderr=False), found, quiet=quiet)


def _show(out: Console, found: Evaluation, *, quiet: bool) -> None:
    from noisesieve.cli.terminal import plain_table, plain_text

    rate, corrupted = found.noise_rate, found.corrupted
    if quiet:
        line = f"precision {_number(corrupted.precision)} recall {_number(corrupted.recall)} "
        out.print(plain_text(f"{line}F1 {_number(corrupted.f1)} AP {_number(found.average_precision)}"))
        return
    out.print(
        plain_text(
            f"{found.wrong:,} of {found.measured:,} labels are wrong ({rate.true:.1%}); "
            f"{corrupted.flagged:,} are flagged, {corrupted.right:,} of these are wrong",
            "bold",
        )
    )
    if found.without_truth:
        out.print(plain_text(f"{found.without_truth:,} rows have no known label and are not counted."))
    table = plain_table()
    table.add_column("")
    for name in ("flagged", "precision", "recall", "F1"):
        table.add_column(name, justify="right")
    for name, row in (
        ("corrupted", corrupted),
        ("clean (the paper's F)", found.clean),
        ("corrupted, paper's ε", found.paper.corrupted),
        ("clean, paper's ε", found.paper.clean),
    ):
        table.add_row(name, f"{row.flagged:,}", *map(_number, (row.precision, row.recall, row.f1)))
    out.print(table)
    out.print()
    hits, bars = found.suggestions, found.calibration
    deep = ", ".join(f"{round(value * int(k)):,} of {int(k):,}" for k, value in found.precision_at.items())
    lines = (
        f"ranking:      average precision {_number(found.average_precision)}, AUC {_number(found.auc)}",
        f"top rows:     wrong labels in {deep}",
        f"suggestions:  right for {hits.right:,} of {hits.made:,} wrong labels that are flagged",
        f"probability:  calibration error {bars.ece:.3f}, Brier score {bars.brier:.3f}",
        f"noise rate:   estimated {rate.estimated:.1%}, true {rate.true:.1%}, off by {100 * rate.error:+.1f} points",
    )
    for line in lines:
        for part in textwrap.wrap(line, out.width, subsequent_indent=" " * 14):
            out.print(plain_text(part))
    out.print()
    classes = plain_table()
    for name in ("given label", "of", "wrong", "flagged", "precision", "recall", "F1"):
        first = name == "given label"
        classes.add_column(name, justify="left" if first else "right", no_wrap=not first, overflow="fold")
    for group in sorted(found.classes, key=lambda group: -group.wanted)[:CLASSES_SHOWN]:
        counts = (f"{count:,}" for count in (group.of, group.wanted, group.flagged))
        classes.add_row(plain_text(group.label), *counts, *map(_number, (group.precision, group.recall, group.f1)))
    if len(found.classes) > CLASSES_SHOWN:
        classes.caption = f"and {len(found.classes) - CLASSES_SHOWN:,} more classes with --json"
    out.print(classes)
    out.print()
    if found.picture:
        out.print(plain_text(f"Chart: {found.picture}"), soft_wrap=True)


def _show_planted(out: Console, found: PlantedEvaluation, *, quiet: bool) -> None:
    from noisesieve.cli.terminal import plain_text

    row = found.corrupted
    low, high = found.recall_interval
    low_precision, high_precision = found.precision_interval
    at_own = found.precision_at_own_rate
    lines = [
        f"{row.right:,} of {found.planted:,} planted flips are flagged: recall {_number(row.recall)} "
        f"(95 % interval {low:.2f} to {high:.2f})",
        f"{row.flagged - row.right:,} other rows that were clean are flagged: precision "
        f"{_number(row.precision)} (95 % interval {low_precision:.2f} to {high_precision:.2f})",
    ]
    if not quiet:
        lines += [
            f"At the estimated noise rate ({found.own_rate:.1%}) this is a precision of {_number(at_own)}: "
            f"{found.false_alarm_rate:.2%} of clean rows are flagged.",
            f"Average precision {_number(found.average_precision)}, calibration error "
            f"{found.calibration.ece:.3f}; {found.suspects_found_again:,} of {found.suspects:,} suspects "
            "are flagged again.",
            "This is an estimate: rows that the first scan flagged take no part, and wrong labels that it missed "
            "count as false alarms.",
        ]
    for name in found.lost_classes:
        lines.insert(0, f"NOT VALID: every row of class {name!r} is flagged, so flips into it are always found.")
    for line in lines:
        out.print(plain_text(line, "bold" if line.startswith("NOT VALID") else ""))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
