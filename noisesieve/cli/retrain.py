"""The options and output of `noisesieve retrain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from noisesieve.cli import options as o
from noisesieve.cli.signals import StopRequest
from noisesieve.cli.terminal import TerminalWatcher, WarningsOnly, console, results
from noisesieve.core.errors import Stopped
from noisesieve.core.options import scan_settings
from noisesieve.core.progress import Watcher
from noisesieve.core.settings import RetrainOptions, RetrainSettings

Out = Annotated[Path | None, o.option("Folder for the new model. Default: RUN-retrained.", "--output", "-o")]
Baseline = Annotated[str | None, o.option("ce: also train cross-entropy on all rows, for as many images.")]
Decisions = Annotated[list[Path] | None, o.option("Decisions as `apply` reads them: their labels count as clean.")]
Relabel = Annotated[float | None, o.option("Train on suggested labels of at least this probability.")]
Weight = Annotated[
    float | None, o.option("Weight of the consistency loss. Default: corrupted rows / clean rows, at most 1.")
]
Ratio = Annotated[float | None, o.option("Unlabelled images per labelled one. Default: as the default of --weight.")]
Target = Annotated[str, typer.Option(help="Network of the target: current, epoch-start (the paper's) or ema.")]
Start = Annotated[str | None, o.option("scratch, or run: the scan's weights. Default: run for many rows.")]
Warmup = Annotated[float | None, o.option("Epochs of learning rate warm-up. Default: a tenth of all, at most 5.")]
Clip = Annotated[float, typer.Option(help="Maximum norm of the gradients.")]


def retrain(
    run: o.Run,
    output: Out = None,
    test: o.Test = None,
    test_label_column: o.TestLabel = "label",
    test_root: o.TestRoot = None,
    test_split: o.TestSplit = None,
    baseline: Baseline = None,
    decisions: Decisions = None,
    relabel: Relabel = None,
    weight: Weight = None,
    ratio: Ratio = None,
    target: Target = "current",
    start: Start = None,
    epochs: o.Epochs = None,
    warmup_epochs: Warmup = None,
    batch_size: o.BatchSize = None,
    lr: o.LearningRate = None,
    clip_norm: Clip = 5.0,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    data: o.MovedData = None,
    root: o.MovedRoot = None,
    workers: o.Workers = None,
    cache_dir: o.CacheDir = None,
    cache: o.UseCache = True,
    max_time: o.MaxTime = None,
    force: o.Force = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Train a model on a run's clean rows, and on its corrupted rows without their labels (CORES²*).

    Example: noisesieve retrain my-run --test ./test --baseline ce
    """
    settings = RetrainSettings(
        run=run,
        output=output,
        test=None if test is None else o.test_source(test, test_label_column, test_root, test_split),
        baseline=baseline,
        decisions=tuple(decisions or ()),
        training=RetrainOptions(
            weight=weight,
            ratio=ratio,
            target=target,
            start=start,
            epochs=epochs,
            warmup_epochs=warmup_epochs,
            batch_size=batch_size,
            lr=lr,
            clip_norm=clip_norm,
            relabel=relabel,
            seed=seed,
        ),
        device=device,
        pixels=scan_settings(run, workers=workers, cache_dir=cache_dir, cache=cache).pixels,
        data=data,
        root=root,
        force=force,
    )
    watcher: Watcher = WarningsOnly() if quiet else TerminalWatcher()
    with StopRequest(o.seconds(max_time)) as stop:
        found = run_retraining(settings, watcher, stop, shown=not as_json, quiet=quiet)
    if as_json and found:
        with results():
            print(json.dumps(found))


def run_retraining(
    settings: RetrainSettings, watcher: Watcher, stop: StopRequest, *, shown: bool, quiet: bool
) -> dict[str, Any]:
    """Retrain, and print the result if `shown`. Returns the document for --json; empty on ranks other than 0."""
    from noisesieve.commands.retrain import retrain as retrain_run

    try:
        found = retrain_run(settings, watcher=watcher, stop=stop)
    except Stopped as stopped:
        if stopped.exit_code == 0:
            return {}
        raise
    finally:
        watcher.finish()
    with results():
        if shown and quiet:
            print(found["output"])
        elif shown:
            _show(found)
    return found


def _show(found: dict[str, Any]) -> None:
    from noisesieve.cli.terminal import plain_table, plain_text

    out, rows, scored = console(stderr=False), found["rows"], found["accuracy"]
    head = f"Trained on {rows['clean']:,} labelled and {rows['corrupted']:,} unlabelled images"
    parts = [f"{rows[name]:,} {name}" for name in ("waived", "decided", "relabelled") if rows[name]]
    parts += [f"{rows['left_out']:,} left out"] if rows["left_out"] else []
    out.print(plain_text(head + (f" ({', '.join(parts)})" if parts else ""), "bold"))
    if scored is not None:
        kinds = [name for name in ("before", "baseline", "after") if name in scored]
        words = {"before": "sieve's model", "baseline": "plain CE", "after": "retrained"}
        table = plain_table()
        table.add_column(f"accuracy on {scored['test_rows']:,} test images")
        for name in kinds:
            table.add_column(words[name], justify="right")
        table.add_row("last epoch", *(f"{scored[name]:.3f}" for name in kinds))
        best = {"baseline": scored["baseline_best"], "after": max(scored["after_epochs"])}
        table.add_row("best epoch", *(f"{best[name]:.3f}" if name in best else "" for name in kinds))
        for row in scored["classes"]:
            table.add_row(plain_text(f"  {row['label']}"), *(f"{row[name]:.3f}" for name in kinds))
        out.print(table)
    folder = Path(found["output"])
    names = ", ".join(sorted(file.name for file in folder.iterdir() if file.is_file() and file.name[0] != "."))
    out.print(plain_text(f"Written to {folder}: {names}"), soft_wrap=True)
    out.print(plain_text("Check new batches with it:"))
    out.print(plain_text(f"  noisesieve check ./batch --model {folder}"), soft_wrap=True)
