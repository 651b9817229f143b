"""The options and output of `noisesieve scan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from noisesieve.cli import options as o
from noisesieve.cli.signals import StopRequest
from noisesieve.cli.terminal import TerminalWatcher, WarningsOnly, console, results
from noisesieve.core.errors import InputError, Stopped
from noisesieve.core.options import scan_settings
from noisesieve.core.progress import Watcher
from noisesieve.core.settings import PixelSettings, RetrainOptions, RetrainSettings, ScanSettings

_NOT_SETTINGS = ("data", "as_json", "quiet", "debug", "dry_run", "strict", "max_time", "cache_budget", "retrain")


def scan(
    context: typer.Context,
    data: o.Data,
    output: o.Output = None,
    root: o.Root = None,
    path_column: o.PathColumn = "path",
    label_column: o.LabelColumn = "label",
    image_column: o.ImageColumn = None,
    id_column: o.IdColumn = None,
    split: o.Split = None,
    limit: o.Limit = None,
    allow_outside: o.AllowOutside = False,
    trusted_column: o.TrustedColumn = None,
    preset: o.Preset = "auto",
    backbone: o.Backbone = None,
    weights: o.Weights = None,
    freeze: o.Freeze = None,
    image_size: o.ImageSize = None,
    epochs: o.Epochs = None,
    warmup_epochs: o.WarmupEpochs = None,
    settle_epochs: o.SettleEpochs = None,
    ramp_epochs: o.RampEpochs = None,
    sieve_start: o.SieveStart = None,
    beta: o.Beta = None,
    batch_size: o.BatchSize = None,
    lr: o.LearningRate = None,
    flip: o.Flip = None,
    mixup: o.Mixup = None,
    balanced: o.Balanced = None,
    epoch_steps: o.EpochSteps = None,
    loop_eps: o.LoopEps = None,
    sieve_eps: o.SieveEps = None,
    score_pass: o.ScorePass = "eval",
    seed: o.Seed = 0,
    device: o.Device = "auto",
    workers: o.Workers = None,
    cache_dir: o.CacheDir = None,
    cache: o.UseCache = True,
    cache_budget: o.CacheBudget = f"{PixelSettings.cache_budget // 10**9}GB",
    max_pixels: o.MaxPixels = PixelSettings.max_pixels,
    probabilities: o.Probabilities = "auto",
    review: o.Review = True,
    waivers: o.Waivers = ScanSettings.waivers,
    retrain: o.Retrain = False,
    max_time: o.MaxTime = None,
    dry_run: o.DryRun = False,
    force: o.Force = False,
    strict: o.Strict = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Find the wrong labels of a dataset and write a report.

    Trains a confidence-regularized ResNet. Without a GPU, photos (48 px or more) get confidence-regularized heads on
    frozen features instead, if the extra `lite` is installed. Then the closed-form threshold of CORES² decides on every
    row. The same command again resumes an unfinished run.

    Example: noisesieve scan ./dataset -o my-run
    """
    chosen = {name: value for name, value in context.params.items() if name not in _NOT_SETTINGS}
    settings = scan_settings(data, **chosen, cache_budget=o.size(cache_budget))
    seconds = o.seconds(max_time)
    watcher: Watcher = WarningsOnly() if quiet else TerminalWatcher()
    if dry_run:
        _dry_run(settings, watcher, as_json=as_json)
    else:
        with StopRequest(seconds) as stop:
            document = _scan(settings, watcher, stop, shown=not as_json, quiet=quiet)
            if retrain:
                from noisesieve.cli.retrain import run_retraining

                again = RetrainSettings(
                    Path(document.get("run", "")),
                    training=RetrainOptions(seed=seed),
                    device=device,
                    pixels=settings.pixels,
                    force=force,
                )
                found = run_retraining(again, watcher, stop, shown=not as_json, quiet=quiet)
                document |= {"retrain": found} if document else {}
        if as_json and document:
            with results():
                print(json.dumps(document))
        if strict and document and document["summary"]["unreadable"]:
            raise InputError(
                f"{document['summary']['unreadable']} images cannot be read (--strict).",
                "The report names them.",
            )


def _scan(settings: ScanSettings, watcher: Watcher, stop: StopRequest, *, shown: bool, quiet: bool) -> dict[str, Any]:
    """Scan, and print the summary if `shown`. Returns the document for --json; empty on ranks other than 0."""
    from noisesieve.commands.scan import scan as run

    try:
        report = run(settings, watcher=watcher, stop=stop)
    except Stopped as stopped:
        if stopped.exit_code == 0:  # a rank other than 0
            return {}
        raise
    finally:
        watcher.finish()
    folder, summary = report.path.parent, report.summary
    with results():
        if shown and quiet:
            print(report.path)
        elif shown:
            from noisesieve.cli.summary import print_summary

            known = "true_label" in report.table.column_names
            print_summary(console(stderr=False), summary, folder, truth=known)
    return {"run": str(folder), "report": str(report.path), "summary": summary}


def _dry_run(settings: ScanSettings, watcher: Watcher, *, as_json: bool) -> None:
    from noisesieve.commands.dry_run import dry_run

    found = dry_run(settings, watcher=watcher)
    watcher.finish()
    if as_json:
        print(json.dumps(found))
        return
    cost = found["estimate"]
    print(f"{found['examples']:,} images in {found['classes']:,} classes")
    print(found["plan"])
    print(
        f"at most about {duration(cost['seconds'])} at {cost['images_per_second']:,.0f} images/s, "
        f"{cost['memory_bytes'] / 2**20:,.0f} MiB of memory, {cost['cache_bytes'] / 2**20:,.0f} MiB of pixels"
        + (", streamed" if found["streamed"] else " in the cache")
    )
    print(f"run folder: {found['output']}")


def duration(seconds: float) -> str:
    """Return seconds as `40 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
