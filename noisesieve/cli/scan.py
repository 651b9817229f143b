"""The options and output of `noisesieve scan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from noisesieve.cli import options as o
from noisesieve.cli.signals import RESUMES, running
from noisesieve.cli.terminal import console, print_json, print_line, results
from noisesieve.commands.command_settings import RetrainSettings
from noisesieve.commands.scan_settings import ScanSettings, scan_settings
from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.options import OUTPUT, parse_seconds
from noisesieve.core.progress import Session
from noisesieve.core.text import duration
from noisesieve.retrain.retrain_settings import RetrainOptions

if TYPE_CHECKING:
    from noisesieve.commands.scan import Report

DryRun = Annotated[bool, o.extra("Show the plan and its cost; train nothing.", "--dry-run", group=OUTPUT)]
Retrain = Annotated[
    bool, o.extra("Then train a model on the clean rows, as `retrain` does.", "--retrain", group=OUTPUT)
]
Strict = Annotated[bool, o.extra("Exit 3 if an image cannot be read.", "--strict", group=OUTPUT)]


@o.with_options(ScanSettings)
def scan(
    data: o.Data,
    more: o.MoreDecisions = None,
    dry_run: DryRun = False,
    retrain: Retrain = False,
    strict: Strict = False,
    max_time: o.MaxTime = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """Find the wrong labels of a dataset and write a report.

    Trains a confidence-regularized ResNet. Without a GPU it trains heads on features of a frozen, ImageNet-trained
    network instead, which takes about a minute for a few thousand images. Then the closed-form threshold of CORES²
    decides on every row. The same command again resumes an unfinished run.

    Example: noisesieve scan ./dataset -o my-run
    """
    settings = scan_settings(data, **o.with_more_decisions(options, more))
    if retrain and settings.predictions is not None:
        raise UsageError("--retrain: nothing is trained on predictions.", "Leave it out.")
    seconds = None if max_time is None else parse_seconds(max_time, "--max-time")
    with running(quiet, seconds=seconds, hint=RESUMES) as session:
        if dry_run:
            _dry_run(settings, session, as_json=as_json)
            return
        report = _scan(settings, session, shown=not as_json, quiet=quiet)
        retrained = None
        if retrain:
            from noisesieve.cli.retrain import run_retraining

            again = RetrainSettings(
                Path() if report is None else report.path.parent,
                training=RetrainOptions(seed=settings.training.seed),
                device=settings.device,
                pixels=settings.pixels,
                force=settings.force,
            )
            retrained = run_retraining(again, session, shown=not as_json, quiet=quiet)
    if report is None:
        return
    summary = report.summary
    if as_json:
        document = {"run": str(report.path.parent), "report": str(report.path), "summary": summary.to_document()}
        with results():
            print_json(document if retrained is None else {**document, "retrain": retrained.to_document()})
    if strict and (unreadable := summary.unreadable):
        raise InputError(f"Not every image can be read: {unreadable:,} cannot (--strict).", "The report names them.")


def _scan(settings: ScanSettings, session: Session, *, shown: bool, quiet: bool) -> Report | None:
    """Scan, and print the summary if `shown`. Returns None on ranks other than 0."""
    from noisesieve.commands.scan import scan as run

    report = run(settings, session=session)
    session.finish()
    if report is None:
        return None
    folder = report.path.parent
    with results():
        if shown and quiet:
            print_line(report.path)
        elif shown:
            from noisesieve.cli.scan_summary import print_summary

            known = "true_label" in report.column_names
            print_summary(console(stderr=False), report.summary, folder, truth=known)
    return report


def _dry_run(settings: ScanSettings, session: Session, *, as_json: bool) -> None:
    from noisesieve.commands.dry_run import dry_run

    plan = dry_run(settings, session=session)
    session.finish()
    if as_json:
        print_json(plan.to_document())
        return
    cost = plan.estimate
    print_line(f"{plan.examples:,} images in {plan.classes:,} classes")
    print_line(plan.plan)
    print_line(
        f"at most about {duration(cost.seconds)} at {cost.images_per_second:,.0f} images/s, "
        f"{cost.memory_bytes / 2**20:,.0f} MiB of memory, {cost.cache_bytes / 2**20:,.0f} MiB of pixels"
        + (", streamed" if plan.streamed else " in the cache")
    )
    print_line(f"run folder: {plan.output}")
