"""The options and output of `noisesieve retrain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from noisesieve.cli import options as o
from noisesieve.cli.signals import RESUMES, running
from noisesieve.cli.terminal import console, print_json, print_line, results
from noisesieve.commands.command_settings import RetrainSettings
from noisesieve.core.options import build_settings, parse_seconds
from noisesieve.core.progress import Session

if TYPE_CHECKING:
    from noisesieve.commands.retrain import RetrainSummary


@o.with_options(RetrainSettings, without=("cache_budget", "max_pixels"))
def retrain(
    run: o.Run,
    more: o.MoreDecisions = None,
    max_time: o.MaxTime = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """Train models on a run's clean rows, compare them without truth, and save the best.

    On all rows as given, on kept rows, on kept rows and confident suggestions; heads also on labels that the noise
    model corrected, a network also with consistency training (CORES²), which uses corrupted rows without their labels.
    The one that predicts most given labels that it was not shown is saved; corrected labels and consistency also where
    the lead of another may be chance. A frozen run: heads on its stored features, in seconds; --no-freeze, or a trained
    run: networks.

    Example: noisesieve retrain my-run --test ./test
    """
    settings = build_settings(RetrainSettings, {"run": run, **o.with_more_decisions(options, more)})
    seconds = None if max_time is None else parse_seconds(max_time, "--max-time")
    with running(quiet, seconds=seconds, hint=RESUMES) as session:
        summary = run_retraining(settings, session, shown=not as_json, quiet=quiet)
    if as_json and summary:
        with results():
            print_json(summary.to_document())


def run_retraining(settings: RetrainSettings, session: Session, *, shown: bool, quiet: bool) -> RetrainSummary | None:
    """Retrain, and print the result if `shown`. Returns None on ranks other than 0."""
    from noisesieve.commands.retrain import retrain as retrain_run

    summary = retrain_run(settings, session=session)
    session.finish()
    if summary is None:
        return None
    with results():
        if shown and quiet:
            print_line(summary.output)
        elif shown:
            _show(summary)
    return summary


def _show(summary: RetrainSummary) -> None:
    from noisesieve.cli.terminal import plain_table, plain_text

    out, rows = console(stderr=False), summary.rows
    head = f"Trained on {rows.clean:,} clean and {rows.corrupted:,} corrupted rows"
    counts = (("waived", rows.waived), ("decided", rows.decided), ("relabelled", rows.relabelled))
    parts = [f"{count:,} {name}" for name, count in (*counts, ("left out", rows.left_out)) if count]
    out.print(plain_text(head + (f" ({', '.join(parts)})" if parts else ""), "bold"))
    table = plain_table()
    table.add_column(f"{summary.kind} trained on")
    for name in ("rows", "given labels predicted", *(["test accuracy"] if summary.test_rows else [])):
        table.add_column(name, justify="right")
    for row in summary.candidates:
        agreement = "–" if row.agreement is None else f"{row.agreement:.1%}"
        accuracy = [] if row.accuracy is None else [f"{row.accuracy:.3f}"]
        mark = " *" if row.name == summary.chosen else ""
        table.add_row(plain_text(row.name + mark), f"{row.rows:,}", agreement, *accuracy)
    out.print(table)
    out.print(plain_text(summary.why))
    if summary.kind == "network" and summary.saved_accuracy is not None:
        out.print(
            plain_text(f"Accuracy of what is saved, on {summary.test_rows:,} test images: {summary.saved_accuracy:.3f}")
        )
    _show_next(summary.output)


def _show_next(output: str) -> None:
    from noisesieve.cli.terminal import plain_text

    out, folder = console(stderr=False), Path(output)
    names = ", ".join(sorted(file.name for file in folder.iterdir() if file.is_file() and file.name[0] != "."))
    out.print(plain_text(f"Written to {folder}: {names}"), soft_wrap=True)
    out.print(plain_text("Check new batches with it:"))
    out.print(plain_text(f"  noisesieve check ./batch --model {folder}"), soft_wrap=True)
