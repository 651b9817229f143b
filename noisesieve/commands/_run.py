"""The run folder of a scan: opened, or found finished and brought up to date."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from noisesieve import __version__
from noisesieve.commands._identity import digest_of_decisions
from noisesieve.commands._open_run import rewrite_run
from noisesieve.commands.review import PageRequest, write_review
from noisesieve.commands.scan_settings import NOTHING_TOGETHER, ScanSettings
from noisesieve.core.errors import OutputError
from noisesieve.core.progress import Session
from noisesieve.core.records import Index
from noisesieve.core.run_lock import locked
from noisesieve.pixels.decoded import Decoded
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.build_table import require_column
from noisesieve.report.choose_folder import next_folder, output_folder
from noisesieve.report.report import Report, read_report
from noisesieve.report.run import RunFolder
from noisesieve.report.waivers import find_waived


@contextlib.contextmanager
def open_run(index: Index, settings: ScanSettings, session: Session) -> Iterator[RunFolder]:
    """Lock the run folder, and finish or remove what a killed process left there."""
    require_column(index, settings.group_by)
    if settings.keep_together != NOTHING_TOGETHER:
        require_column(index, settings.keep_together, "--keep-together")
    folder = output_folder(settings.output, index, session)
    if settings.decisions and settings.output is None:
        folder = next_folder(folder, digest_of_decisions(settings))
    with locked(folder):
        session.note_all(index.notes)
        session.warn_all(index.warnings)
        run = RunFolder(folder)
        run.recover()
        yield run


def bring_up_to_date(
    run: RunFolder, index: Index, settings: ScanSettings, decoder: Decoder, session: Session
) -> Report:
    """Return a finished run's report with the current waivers and groups. No score changes: nothing is trained."""
    session.note("This run is finished already: same settings, same data.")
    if (known := run.read()) is not None and not known.own:
        session.warn("Its run.json is not signed by you: it was made elsewhere, or by an earlier version.")
    if (version := run.version()) != __version__:
        session.note(f"It was made by noisesieve {version}; this is {__version__}.")
    if run.unfinished() is not None:
        session.note("Another scan into this folder was stopped: its own command goes on with it.")
    report = read_report(run.folder)
    waived, broken = find_waived(settings.waivers, index, report.hashes)
    session.warn_all(broken)
    grouped = report.summary.groups
    same = np.array_equal(waived, report.numbers("waived"))
    if same and (settings.group_by is None or (grouped is not None and grouped.column == settings.group_by)):
        if not (run.folder / "review.html").exists():  # it was stopped while it wrote the page
            show(report, index, settings, decoder, session)
        return report
    report = rewrite_run(report, "waived", waived, group_by=settings.group_by)
    if not same:
        session.note("The waivers have changed: report and summary are updated.")
    show(report, index, settings, decoder, session)
    return report


def show(
    report: Report,
    index: Index,
    settings: ScanSettings,
    decoder: Decoder,
    session: Session,
    *,
    decoded: Decoded | None = None,
) -> None:
    """Write the review page. The run is complete without it, so an error here is only a warning.

    A run that is stopped here is finished; the same command again writes the page.
    """
    if not settings.review:
        return
    request = PageRequest(report, index, settings.min_probability, decoded=decoded)
    try:
        write_review(request, report.path.parent / "review.html", decoder, session)
    except (OutputError, OSError) as error:
        session.warn(f"The run is complete, but its review page is missing ({error}). `noisesieve review` writes it.")
