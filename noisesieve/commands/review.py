"""`noisesieve review`: report + images → review.html."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from noisesieve.commands._open_run import (
    index_of_run,
    pixel_settings_of_run,
    refuse_output_in_dataset,
    shows_images,
)
from noisesieve.commands._own_vectors import kind_of_vectors
from noisesieve.commands._row_features import open_features
from noisesieve.commands.command_settings import ReviewSettings
from noisesieve.core.errors import InputError, OutputError
from noisesieve.core.files import atomic_write
from noisesieve.core.progress import Session
from noisesieve.core.records import Index, Ints
from noisesieve.core.text import leads_out
from noisesieve.measure.samples import draw_probe
from noisesieve.pixels.decoded import Decoded
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.report import Report, read_report
from noisesieve.review.page import render_page
from noisesieve.review.page_data import PageImages, build_page_data, decided_rows
from noisesieve.review.references import References, candidates, choose_references
from noisesieve.sources.table import TABLE_SUFFIXES

EARLIER = 200  # rows shown that were decided before
THUMBNAILS = ((200, 480), (600, 384), (2000, 256))  # up to so many suspects: longer side of an image, in pixels
SMALL_THUMBNAIL = 160  # of references, and of more suspects


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
    request = PageRequest(
        report,
        index,
        settings.min_probability,
        limit=settings.limit,
        sample=sample,
        shows=shows,
        guard=settings.guard,
    )
    with Decoder(pixel_settings_of_run(report), session) as decoder:
        suspects = write_review(request, page, decoder, session)
    probed = 0 if sample is None else len(sample)
    return ReviewResult(page, suspects, min(settings.limit, suspects), len(report.suspect_rows(0.0)), probed)


@dataclass(frozen=True)
class PageRequest:
    """What a page shows: the suspects of a report, with their images."""

    report: Report
    index: Index
    min_probability: float
    limit: int = ReviewSettings.limit
    sample: Ints | None = None  # a random sample of rows, which come first
    shows: bool = True  # False: without images
    guard: bool = False  # hide clean images of other classes in every tenth sheet
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
    suspects = report.suspect_rows(request.min_probability)
    first: Ints = np.zeros(0, dtype=np.int64) if sample is None else sample
    rows: Ints = np.concatenate((first, suspects[: request.limit][~np.isin(suspects[: request.limit], first)]))
    earlier = decided_rows(report)[:EARLIER]
    wanted = [*rows.tolist(), *(row for row in earlier.tolist() if row not in set(rows.tolist()))]
    compared = _references(request, rows, session)
    longest = next((size for most, size in THUMBNAILS if len(rows) <= most), SMALL_THUMBNAIL)
    shown = _thumbnails(request, wanted, longest, decoder)
    others = [row for row in compared.rows if shown.get(row) is None]
    images = PageImages(
        dict.fromkeys(wanted) | shown,
        {row: shown[row] for row in compared.rows if shown.get(row) is not None}
        | _thumbnails(request, others, SMALL_THUMBNAIL, decoder),
        _files_beside(page, index) if request.shows else None,
    )
    ending = next((end for end, kind in TABLE_SUFFIXES.items() if kind == index.kind), ".csv")
    corrected = "corrected --tree copy" if index.kind == "folder" else f"corrected{ending}"
    text = render_page(
        build_page_data(
            report,
            rows,
            images,
            compared,
            min_probability=request.min_probability,
            run=_as_typed(report.path.parent),
            corrected=corrected,
            sample=len(first),
            guard=request.guard,
        )
    )
    with atomic_write(page) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
    if lost := sum(image is None for image in shown.values()):
        which = "1 image is" if lost == 1 else f"{lost:,} images are"
        session.warn(f"{which} missing or changed since the run, and not shown on the page.")
    return len(suspects)


def _references(request: PageRequest, rows: Ints, session: Session) -> References:
    """Return the clean rows that suspects are compared with, by the run's features where they are stored."""
    report, index = request.report, request.index
    if not request.shows or not len(rows) or not index.locate(int(rows[0])).file:
        return References()
    pool = candidates(report, rows)
    every = np.unique(np.concatenate((rows, *pool.values())))
    try:
        read = open_features(report, index, every)
    except InputError as error:
        session.warn(f"Similar images are left out: {error}")
        read = None
    return choose_references(report, rows, pool, None if read is None else lambda chosen: read(chosen).float().numpy())


def _thumbnails(request: PageRequest, rows: list[int], longest: int, decoder: Decoder) -> dict[int, bytes | None]:
    """Return the images of those rows that may be shown; None for one that is missing or changed since the run."""
    report, index = request.report, request.index
    if not request.shows or not rows:
        return {}
    paths = report.take(np.array(rows, dtype=np.int64), "path")["path"].to_pylist()
    inside = [
        row for row, path in zip(rows, paths, strict=True) if index.locate(row).file and not leads_out(path or "")
    ]
    scanned = kind_of_vectors(report) is None  # else the hashes are not those of the images
    images = decoder.thumbnails(
        index,
        np.array(inside, dtype=np.int64),
        sha256=report.take(np.array(inside, dtype=np.int64), "sha256")["sha256"].to_pylist() if scanned else None,
        longest=longest,
        training_size=report.summary.training.recipe.image_size,
        decoded=request.decoded,
    )
    return dict(zip(inside, images, strict=True))


def _files_beside(page: Path, index: Index) -> str | None:
    """Return the address of the dataset's folder as seen from the page; None where images are embedded in a table."""
    if index.locate(0).column is not None or not index.locate(0).file:
        return None
    try:
        beside = os.path.relpath(index.root.resolve(), page.resolve().parent)
    except ValueError:  # another drive of Windows
        return None
    return quote(Path(beside).as_posix()) + "/"
