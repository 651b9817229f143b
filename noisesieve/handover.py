"""After the scan: the run shown, handed over, taken back. Read pipeline.py first.

SHOW      review    report + pictures   → review.html
HAND OVER exports   report + pictures   → the annotator's format
TAKE BACK decisions decision files      → outcomes, checked against the report and the pictures
          sources   dataset + outcomes  → a corrected dataset; the old one is never changed
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from noisesieve import __version__, exports, pixels
from noisesieve.errors import InputError, OutputError, UsageError
from noisesieve.exports import EXPORTS, Export, Parcel
from noisesieve.exports.parcel import Lost
from noisesieve.files import filling, replacing
from noisesieve.names import leads_out
from noisesieve.pixels.decode import Unreadable
from noisesieve.records import Index
from noisesieve.reopen import index_of, pixels_of, settings_of
from noisesieve.report import Report
from noisesieve.report.run import FILES
from noisesieve.review import choose, gather, render
from noisesieve.settings import ExportSettings, PixelSettings
from noisesieve.sources.table import KINDS
from noisesieve.watch import Watcher

Pause = Callable[[], None]
THUMBNAIL = 480  # the longer side of a picture on the page


# SHOW


def review(report: Report, index: Index, out: Path, *, limit: int, watcher: Watcher, pause: Pause) -> None:
    """Write the review page. A picture that changed since the run, or lies outside the dataset, is not shown."""
    rows = choose(report, limit)
    paths, hashes = report.table["path"].to_pylist(), report.table["sha256"].to_pylist()
    shown = np.array([row for row in rows.tolist() if not leads_out(paths[row] or "")], dtype=np.int64)
    made = pixels.thumbnails(
        index,
        shown,
        pixels_of(report),
        watcher,
        sha256=[hashes[row] for row in shown.tolist()],
        longest=THUMBNAIL,
        pause=pause,
    )
    pictures = dict(zip(shown.tolist(), made, strict=True))
    page = render(gather(report, rows, [pictures.get(row) for row in rows.tolist()]))
    with replacing(out) as file:
        file.write(page.encode("utf-8", "backslashreplace"))
    if lost := sum(picture is None for picture in made):
        watcher.warn(f"{lost:,} pictures are gone or changed since the run: the page shows none for them.")


def refuse_dataset(report: Report, out: Path, data: Path | None, root: Path | None) -> None:
    """Nothing of ours goes into the dataset, or over the run's own files."""
    own = (*FILES, "run.json")
    if out.name in own and out.resolve().parent == report.path.parent.resolve():
        raise OutputError(f"{out}: is the run's own file.", "Choose another name with -o.")
    try:
        source = settings_of(report, data, root).source
    except InputError:
        return  # the dataset is not there: nothing to spoil
    if source.path.is_dir() and out.resolve().is_relative_to(source.path.resolve()):
        raise OutputError(f"{out}: lies inside the dataset.", "Choose a place outside with -o.")
    if out.exists() and out.samefile(source.path):
        raise OutputError(f"{out}: is the dataset itself.", "Choose another name with -o.")


# HAND OVER


def export(report: Report, settings: ExportSettings, *, watcher: Watcher, pause: Pause) -> dict[str, Any]:
    """Write some rows in one of the formats of EXPORTS; what was written, and what to do with it."""
    if settings.format not in EXPORTS:
        raise UsageError(f"--to {settings.format}: unknown.", f"Choose {', '.join(EXPORTS)}.")
    kind = EXPORTS[settings.format]
    out = settings.output or report.path.parent / kind.name.format(only=_word(settings.only))
    refuse_dataset(report, out, settings.data, settings.root)
    if kind.folder and out.suffix.lower() in (".json", ".xml", *KINDS):
        raise UsageError(f"-o {out}: --to {settings.format} makes a folder.", "Leave the ending out.")
    chosen = exports.pick(report, only=settings.only, top=settings.top, least=settings.min_probability)
    if kind.pictures:
        chosen = chosen.filter(pc.equal(chosen["status"], "ok"))
    if len(chosen) == 0:
        raise InputError(f"{report.path.parent}: no rows to export with these options.", "Loosen them, or --only all.")
    with filling(out, folder=kind.folder, force=settings.force) as place:
        parcel = Parcel(
            table=chosen,
            classes=report.facts["classes"],
            out=place,
            shown=out,
            version=__version__,
            link=settings.files == "link",
            image_prefix=settings.image_prefix,
        )
        if kind.pictures:
            index = index_of(report, settings.data, settings.root)
            parcel = _with_pictures(parcel, kind, index, settings, pixels_of(report), watcher, pause)
        made = kind.write(parcel)
    result = {"output": str(out), "format": settings.format, "rows": made.rows, "only": settings.only}
    return {**result, "notes": made.notes}


def _word(only: str) -> str:
    return {"corrupted": "suspects"}.get(only, only)


def _with_pictures(
    parcel: Parcel,
    kind: Export,
    index: Index,
    settings: ExportSettings,
    pixel_settings: PixelSettings,
    watcher: Watcher,
    pause: Pause,
) -> Parcel:
    rows, hashes = parcel.table["row"].to_pylist(), parcel.table["sha256"].to_pylist()
    places = [index.places(row) for row in rows]
    embedded = places[0].column is not None
    if embedded and kind.pictures != "bytes":
        raise InputError(
            f"--to {settings.format} points at image files, and these images are embedded in {places[0].file}.",
            "Write them out first: --to folder or --to huggingface.",
        )

    def fetch(i: int) -> bytes:
        pause()
        try:
            blob = pixels.fetch(places[i])
        except Unreadable as error:
            raise Lost from error
        if hashlib.sha256(blob).hexdigest() != hashes[i]:
            raise Lost
        return blob

    sizes = None
    if kind.pictures == "sizes":
        looks = pixels.look(index, pixel_settings, watcher, rows=np.array(rows, dtype=np.int64), pause=pause)
        sizes = list(zip(looks.width.tolist(), looks.height.tolist(), strict=True))
        if lost := int((~looks.readable).sum()):
            watcher.warn(f"{lost:,} pictures can no longer be read: their size is given as 0 x 0.")
    files = [None if embedded else place.file for place in places]
    return replace(parcel, root=index.root.resolve(), files=files, sizes=sizes, fetch=fetch)
