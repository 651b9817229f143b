"""`noisesieve export`: report + images → one of the formats of EXPORTS."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from noisesieve import __version__
from noisesieve.commands._open_run import (
    index_of_run,
    pixel_settings_of_run,
    refuse_output_in_dataset,
    shows_images,
)
from noisesieve.commands._own_vectors import kind_of_vectors
from noisesieve.commands.command_settings import ExportSettings
from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.files import atomic_output
from noisesieve.core.progress import Session
from noisesieve.core.records import Index
from noisesieve.exports.formats import EXPORTS
from noisesieve.exports.job import ExportFormat, ExportJob, ImageChanged, chosen_rows, select_rows
from noisesieve.pixels.decoder import Decoder
from noisesieve.pixels.fetch import fetch
from noisesieve.pixels.image import Unreadable
from noisesieve.report.report import Report, read_report
from noisesieve.report.report_settings import MIN_PROBABILITY
from noisesieve.sources.table import TABLE_SUFFIXES

FILE_WORDS = {"corrupted": "suspects", "clean": "clean", "all": "all"}  # --only → word in the default file name


@dataclass(frozen=True)
class ExportedRows:
    """What was written, and the next steps."""

    output: str
    format: str
    rows: int
    only: str
    notes: list[str]


def export(run: Path, settings: ExportSettings, *, session: Session) -> ExportedRows:
    """Write rows of a run in one of the formats of EXPORTS, and return what was written and the next steps."""
    report, kind = read_report(run), EXPORTS[settings.to]
    out = settings.output or report.path.parent / kind.name.format(only=FILE_WORDS[settings.only])
    refuse_output_in_dataset(report, out, settings.moved)
    if kind.folder and out.suffix.lower() in (".json", ".xml", *TABLE_SUFFIXES):
        raise UsageError(f"-o {out}: --to {settings.to} writes a folder.", "Leave the extension out.")
    rows = select_rows(report, only=settings.only, top=settings.top, min_probability=settings.min_probability)
    if kind.images:
        rows = rows[report.texts("status").codes(["ok"])[rows] == 0]
    if len(rows) == 0:
        raise InputError(
            f"{report.path.parent}: no rows to export with these options.", "Lower --min-probability, or --only all."
        )
    with atomic_output(out, folder=kind.folder, force=settings.force) as target:
        job = ExportJob(
            chosen=chosen_rows(report, rows),
            classes=report.facts.classes,
            out=target,
            shown=out,
            version=__version__,
            link=settings.files == "link",
            image_prefix=settings.image_prefix,
        )
        if kind.images:
            if not shows_images(report, settings.moved):
                raise InputError(
                    f"{report.path.parent}: you did not make this run here, and nothing in it proves its images.",
                    "If you trust it, name its dataset: --data PATH",
                )
            index = index_of_run(report, settings.moved)
            job = _with_images(job, kind, index, settings, report, session)
        result = kind.write(job)
    notes = result.notes
    if settings.only == "corrupted" and settings.min_probability is None:
        unlikely = len(report.suspect_rows(0.0)) - len(report.suspect_rows(MIN_PROBABILITY))
        if unlikely:
            less = f"less than {MIN_PROBABILITY:.0%}: --min-probability 0 exports them too"
            notes = [*notes, f"{unlikely:,} more {'is' if unlikely == 1 else 'are'} flagged, but wrong with {less}."]
    return ExportedRows(str(out), settings.to, result.rows, settings.only, notes)


def _with_images(
    job: ExportJob,
    kind: ExportFormat,
    index: Index,
    settings: ExportSettings,
    report: Report,
    session: Session,
) -> ExportJob:
    """Return the job with what its format needs of the images: files, sizes or bytes."""
    scanned = kind_of_vectors(report) is None  # else the hashes are not those of the images
    rows, hashes = job.table["row"].to_pylist(), job.table["sha256"].to_pylist()
    locations = [index.locate(row) for row in rows]
    embedded = locations[0].column is not None
    if not locations[0].file:
        raise InputError(f"--to {settings.to} needs images, and the table has none.", "Choose csv or jsonl.")
    if embedded and kind.images != "bytes":
        raise InputError(
            f"--to {settings.to} needs image files, and these images are embedded in {locations[0].file}.",
            "Write them to files first: --to folder or --to huggingface.",
        )

    if kind.images == "bytes":  # only what decodes as an image is copied, and only as it was then
        with Decoder(pixel_settings_of_run(report), session) as decoder:
            valid = decoder.validate(index, np.array(rows, dtype=np.int64))
        hashes = [sha if not scanned or sha == known else None for sha, known in zip(valid, hashes, strict=True)]

    def fetch_row(i: int) -> bytes:
        session.pause()
        try:
            blob = fetch(locations[i])
        except Unreadable as error:
            raise ImageChanged from error
        if hashlib.sha256(blob).hexdigest() != hashes[i]:
            raise ImageChanged
        return blob

    sizes = None
    if kind.images == "sizes":
        with Decoder(pixel_settings_of_run(report), session) as decoder:
            file_facts = decoder.inspect(index, rows=np.array(rows, dtype=np.int64))
        sizes = list(zip(file_facts.width.tolist(), file_facts.height.tolist(), strict=True))
        if lost := int((~file_facts.readable).sum()):
            session.warn(f"{lost:,} images cannot be read any more: their size is given as 0 x 0.")
    files = [None if embedded else location.file for location in locations]
    return replace(job, root=index.root.resolve(), files=files, sizes=sizes, fetch=fetch_row)
