"""`noisesieve review`: report + images → review.html."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noisesieve.commands._open_run import (
    index_of_run,
    pixel_settings_of_run,
    refuse_output_in_dataset,
    shows_images,
)
from noisesieve.commands._own_vectors import kind_of_vectors
from noisesieve.commands.command_settings import ReviewSettings
from noisesieve.core.errors import OutputError
from noisesieve.core.files import atomic_write
from noisesieve.core.progress import Session
from noisesieve.core.records import Index, Ints
from noisesieve.core.text import leads_out
from noisesieve.measure.samples import draw_probe
from noisesieve.pixels.decoded import Decoded
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.report import Report, read_report
from noisesieve.review.page import render_page
from noisesieve.review.page_data import build_page_data, decided_rows

EARLIER = 200  # rows shown that were decided before
THUMBNAIL = 480  # longer side of an image on the page, in pixels


@dataclass(frozen=True)
class ReviewResult:
    """Where the page was written, and how many suspects it shows."""

    page: Path
    suspects: int
    shown: int
    flagged: int
    sample: int


def review(run: Path, settings: ReviewSettings, *, session: Session) -> ReviewResult:
    """Write the review page of a finished run."""
    report = read_report(run)
    page = settings.output or report.path.parent / "review.html"
    refuse_output_in_dataset(report, page, settings.moved)
    if settings.output is not None and page.exists() and not settings.force:
        raise OutputError(f"{page}: exists already.", "Choose another name with -o, or pass --force.")
    index, shows = index_of_run(report, settings.moved), shows_images(report, settings.moved)
    if not shows:
        session.warn("You did not make this run here, and nothing in it proves its images: they are shown with --data.")
    sample = draw_probe(report, settings.probe, seed=settings.probe_seed) if settings.probe else None
    request = PageRequest(report, index, settings.min_probability, limit=settings.limit, sample=sample, shows=shows)
    with Decoder(pixel_settings_of_run(report), session) as decoder:
        suspects = write_review(request, page, decoder, session)
    probed = 0 if sample is None else len(sample)
    return ReviewResult(page, suspects, min(settings.limit, suspects), len(report.corrupted), probed)


@dataclass(frozen=True)
class PageRequest:
    """What a page shows: the suspects of a report, with their images."""

    report: Report
    index: Index
    min_probability: float
    limit: int = ReviewSettings.limit
    sample: Ints | None = None  # a random sample of rows, which come first
    shows: bool = True  # False: without images
    decoded: Decoded | None = None  # what the scan has decoded already


def _as_typed(folder: Path) -> str:
    """Return a folder as a command in the working folder names it: relative if it is below, else absolute."""
    folder, here = folder.resolve(), Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)


def write_review(request: PageRequest, page: Path, decoder: Decoder, session: Session) -> int:
    """Write the page, a random sample first if there is one, and return how many suspects there are.

    An image that changed since the run, or is outside the dataset, is not shown.
    """
    report, index, sample = request.report, request.index, request.sample
    suspects = report.suspects(request.min_probability)["row"].to_numpy()
    first: Ints = np.zeros(0, dtype=np.int64) if sample is None else sample
    rows: Ints = np.concatenate((first, suspects[: request.limit][~np.isin(suspects[: request.limit], first)]))
    paths, hashes = report.table["path"].to_pylist(), report.table["sha256"].to_pylist()
    earlier = decided_rows(report)[:EARLIER]
    wanted = [*rows.tolist(), *(row for row in earlier.tolist() if row not in set(rows.tolist()))]
    shown = [row for row in wanted if index.locate(row).file and not leads_out(paths[row] or "")]
    inside = np.array(shown if request.shows else [], dtype=np.int64)
    scanned = kind_of_vectors(report) is None  # else the hashes are not those of the images
    thumbnails = decoder.thumbnails(
        index,
        inside,
        sha256=[hashes[row] for row in inside.tolist()] if scanned else None,
        longest=THUMBNAIL,
        training_size=report.summary.training.recipe.image_size,
        decoded=request.decoded,
    )
    images = dict.fromkeys(wanted) | dict(zip(inside.tolist(), thumbnails, strict=True))
    run = _as_typed(report.path.parent)
    text = render_page(build_page_data(report, rows, images, request.min_probability, run=run, sample=len(first)))
    with atomic_write(page) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
    if lost := sum(thumbnail is None for thumbnail in thumbnails):
        which = "1 image is" if lost == 1 else f"{lost:,} images are"
        session.warn(f"{which} missing or changed since the run, and not shown on the page.")
    return len(suspects)
