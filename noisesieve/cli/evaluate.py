"""The options and output of `noisesieve evaluate`."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from noisesieve.cli import options as o
from noisesieve.cli.signals import RESUMES, running
from noisesieve.cli.terminal import console, print_json, results
from noisesieve.commands.measure_settings import EvaluateSettings
from noisesieve.core.options import build_settings

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from noisesieve.commands.evaluate import DecidedEvaluation, Evaluation, PlantedEvaluation

CLASSES_SHOWN = 20


@o.with_options(EvaluateSettings)
def evaluate(
    run: o.Run,
    more: o.MoreDecisions = None,
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
    settings = build_settings(EvaluateSettings, o.with_more_decisions(options, more))
    from noisesieve.commands.evaluate import Evaluation, PlantedEvaluation
    from noisesieve.commands.evaluate import evaluate as evaluate_run

    with running(quiet, hint=RESUMES) as session:
        evaluation = evaluate_run(run, settings, session=session)
    with results():
        if as_json:
            print_json(evaluation)
        elif isinstance(evaluation, Evaluation):
            _show(console(stderr=False), evaluation, quiet=quiet)
        elif isinstance(evaluation, PlantedEvaluation):
            _show_planted(console(stderr=False), evaluation, run, quiet=quiet)
        else:
            _show_decided(console(stderr=False), evaluation, run, quiet=quiet)


def _show(out: Console, evaluation: Evaluation, *, quiet: bool) -> None:
    from noisesieve.cli.terminal import plain_table, plain_text

    rate, corrupted = evaluation.noise_rate, evaluation.corrupted
    if quiet:
        line = f"precision {_number(corrupted.precision)} recall {_number(corrupted.recall)} "
        out.print(plain_text(f"{line}F1 {_number(corrupted.f1)} AP {_number(evaluation.average_precision)}"))
        return
    out.print(
        plain_text(
            f"{evaluation.wrong:,} of {evaluation.measured:,} labels are wrong ({rate.true:.1%}); "
            f"{corrupted.flagged:,} are flagged, {corrupted.right:,} of these are wrong",
            "bold",
        )
    )
    if evaluation.without_truth:
        out.print(plain_text(f"{evaluation.without_truth:,} rows have no known label and are not counted."))
    table = plain_table()
    table.add_column("")
    for name in ("flagged", "precision", "recall", "F1"):
        table.add_column(name, justify="right")
    for name, row in (
        ("corrupted", corrupted),
        ("clean (the paper's F)", evaluation.clean),
        ("corrupted, paper's ε", evaluation.paper.corrupted),
        ("clean, paper's ε", evaluation.paper.clean),
    ):
        table.add_row(name, f"{row.flagged:,}", *map(_number, (row.precision, row.recall, row.f1)))
    out.print(table)
    out.print()
    hits, bars = evaluation.suggestions, evaluation.calibration
    deep = ", ".join(f"{round(value * int(k)):,} of {int(k):,}" for k, value in evaluation.precision_at.items())
    lines = (
        f"ranking:      average precision {_number(evaluation.average_precision)}, AUC {_number(evaluation.auc)}",
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
    for group in sorted(evaluation.classes, key=lambda group: -group.wanted)[:CLASSES_SHOWN]:
        counts = (f"{count:,}" for count in (group.of, group.wanted, group.flagged))
        classes.add_row(plain_text(group.label), *counts, *map(_number, (group.precision, group.recall, group.f1)))
    if len(evaluation.classes) > CLASSES_SHOWN:
        classes.caption = f"and {len(evaluation.classes) - CLASSES_SHOWN:,} more classes with --json"
    out.print(classes)
    out.print()
    if evaluation.picture:
        out.print(plain_text(f"Chart: {evaluation.picture}"), soft_wrap=True)


def _show_planted(out: Console, evaluation: PlantedEvaluation, run: Path, *, quiet: bool) -> None:
    from noisesieve.cli.terminal import plain_text

    lines = [
        f"{evaluation.found:,} of {evaluation.planted:,} planted flips are flagged: recall {evaluation.recall:.3f} "
        f"{_interval(evaluation.recall_interval)}",
        f"{evaluation.newly_flagged:,} rows are flagged that were not before, planted ones among them: precision "
        f"{_number(evaluation.precision)} {_interval(evaluation.precision_interval)}",
    ]
    if not quiet:
        lines += [
            f"{evaluation.suspects_found_again:,} of {evaluation.suspects:,} suspects are flagged again.",
            "Both hold for flips like the planted ones. How many mistakes of people are found, and how many of the "
            f"suspects are wrong, only people can tell: noisesieve review {run} --probe 30",
        ]
    for line in lines:
        out.print(plain_text(line))


def _show_decided(out: Console, evaluation: DecidedEvaluation, run: Path, *, quiet: bool) -> None:
    from noisesieve.cli.terminal import plain_text

    seen, rate = evaluation.judgement, evaluation.judgement.noise_rate
    which = "of the random sample" if seen.from_sample else "that were decided (not a random sample)"
    precision = seen.precision
    lines = [
        f"{seen.decided:,} decisions, {seen.sampled:,} of them on the random sample: {seen.wrong:,} labels are wrong",
        f"precision: {_number(precision.value)} {_interval((precision.low, precision.high))} "
        f"by {precision.rows:,} flagged rows {which}",
    ]
    if seen.recall is not None and rate is not None:
        lines += [
            f"recall: {_number(seen.recall.value)} {_interval((seen.recall.low, seen.recall.high))}",
            f"noise rate: {_number(rate.value)} {_interval((rate.low, rate.high))}",
        ]
    elif not quiet:
        lines.append(f"Recall needs a random sample: noisesieve review {run} --probe 30")
    if not quiet:
        change = f"{evaluation.estimated_before:.1%} to {evaluation.estimated_after:.1%}"
        said = "corrected by these decisions" if evaluation.updated else "--update would correct them"
        lines.append(f"The run's probabilities: {said}; the estimated noise rate goes from {change}.")
    for line in lines:
        out.print(plain_text(line))


def _interval(bounds: tuple[float, float]) -> str:
    return f"(95 % interval {bounds[0]:.2f} to {bounds[1]:.2f})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
