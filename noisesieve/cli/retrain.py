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
    """Train a model on a run's clean rows, and on its corrupted rows without their labels (CORES²*).

    Example: noisesieve retrain my-run --test ./test --baseline ce
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
    from noisesieve.commands.retrain import MODELS

    out, rows, scored = console(stderr=False), summary.rows, summary.accuracy
    head = f"Trained on {rows.clean:,} labelled and {rows.corrupted:,} unlabelled images"
    counts = (("waived", rows.waived), ("decided", rows.decided), ("relabelled", rows.relabelled))
    parts = [f"{count:,} {name}" for name, count in (*counts, ("left out", rows.left_out)) if count]
    out.print(plain_text(head + (f" ({', '.join(parts)})" if parts else ""), "bold"))
    if scored is not None:
        kinds = [name for name in MODELS if name in scored.accuracy]
        words = {"before": "sieve's model", "baseline": "plain CE", "after": "retrained"}
        table = plain_table()
        table.add_column(f"accuracy on {scored.test_rows:,} test images")
        for name in kinds:
            table.add_column(words[name], justify="right")
        table.add_row("last epoch", *(f"{scored.accuracy[name]:.3f}" for name in kinds))
        best = {"baseline": scored.baseline_best, "after": max(scored.after_epochs)}
        table.add_row("best epoch", *(f"{best[name]:.3f}" if name in best else "" for name in kinds))
        for row in scored.classes:
            table.add_row(plain_text(f"  {row.label}"), *(f"{row.accuracy[name]:.3f}" for name in kinds))
        out.print(table)
    folder = Path(summary.output)
    names = ", ".join(sorted(file.name for file in folder.iterdir() if file.is_file() and file.name[0] != "."))
    out.print(plain_text(f"Written to {folder}: {names}"), soft_wrap=True)
    out.print(plain_text("Check new batches with it:"))
    out.print(plain_text(f"  noisesieve check ./batch --model {folder}"), soft_wrap=True)
