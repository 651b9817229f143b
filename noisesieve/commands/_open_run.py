"""Open a finished run again: its settings and its dataset, checked against the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from noisesieve.commands._own_vectors import kind_of_vectors
from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.errors import InputError, OutputError, StateError, UsageError
from noisesieve.core.files import write_json
from noisesieve.core.parquet_file import ParquetTable
from noisesieve.core.records import ImageLocation, Index, Recalibration
from noisesieve.core.text import file_of
from noisesieve.decisions.read import read_decisions
from noisesieve.decisions.resolve import Outcome, resolve
from noisesieve.learn.training_settings import TrainingOptions
from noisesieve.pixels.pixel_settings import PixelSettings
from noisesieve.report.report import Report, read_report
from noisesieve.report.run import FILES, RunFolder, RunRecord
from noisesieve.report.summarize import summarize
from noisesieve.report.write_tables import write_blocks
from noisesieve.sources.containers import read_index
from noisesieve.sources.folder import FilesBelow
from noisesieve.sources.source_settings import NOT_MOVED, MovedData, SourceSettings
from noisesieve.sources.table import refuse_paths_outside


def settings_of_run(report: Report, moved: MovedData = NOT_MOVED) -> ScanSettings:
    """Return the settings of a run. `moved` names its dataset anew.

    The run may be a stranger's. Then the paths in it count for nothing but its own dataset's folder, with links and
    paths that lead out of it refused; for anything else the user has to name it.
    """
    known, folder = RunFolder(report.path.parent).read(), report.path.parent
    if known is None or known.location is None or "path" not in known.location:
        raise InputError(f"{folder}: no run.json with the run's settings.", "Scan again with --force.")
    location = known.location
    path = moved.data or Path(location["path"])
    if not path.exists():
        problem = "no such file or folder" if moved.data else "the dataset is not there any more"
        raise InputError(f"{path}: {problem}.", "Give its new path with --data.")
    if path.is_dir() and kind_of_vectors(report) is not None:
        raise StateError(f"{folder / 'run.json'}: vectors of an image folder.", "Scan again with --force.")
    own = {name: Path(location[name]) for name in ("weights", "cache") if name in location and known.own}
    try:
        options = TrainingOptions(**known.identity["training"])
        if "weights" in own:
            options = replace(options, weights=str(own["weights"]))
        return ScanSettings(
            source=SourceSettings(
                path=path,
                root=_root_of_run(folder, known, path, moved),
                allow_outside=moved.allow_outside or (known.own and "outside" in location),
                **known.identity["source"],
            ),
            # Whoever reads them compares their hash with the run's, so they can be of any path.
            embeddings=Path(location["embeddings"]) if "embeddings" in location else None,
            pixels=pixel_settings_of_run(report),
            training=options,
            probabilities=known.identity["probabilities"],
            keep_together=known.identity.get("keep_together"),
        )
    except (KeyError, TypeError, AttributeError, UsageError) as error:
        raise StateError(f"{folder / 'run.json'}: damaged ({error}).", "Scan again with --force.") from error


def _root_of_run(folder: Path, known: RunRecord, path: Path, moved: MovedData) -> Path | None:
    """Return the folder of the images: the one the user names, or the recorded one of the user's own run."""
    assert known.location is not None
    recorded = known.location.get("root")
    root = moved.root or (None if recorded is None else Path(recorded))
    if root is None:
        return None
    if not root.exists():
        raise InputError(f"{root}: the images are not there any more.", "Give their new folder with --root.")
    home = path if path.is_dir() else path.parent
    if moved.root is None and not known.own and root.resolve() != home.resolve():
        raise InputError(
            f"{folder}: names images in {root}, outside its dataset's own folder, and you did not make this run here.",
            f"If you trust it, name that folder: --root {root}",
        )
    return root


def is_own_run(report: Report) -> bool:
    """Return True if this user made the run on this machine."""
    known = RunFolder(report.path.parent).read()
    return known is not None and known.own


def shows_images(report: Report, moved: MovedData = NOT_MOVED) -> bool:
    """Return True if the images of a run may be shown and copied: their hashes are known, or the user vouches for them.

    A run from vectors has no hashes of images: a stranger's could name any file.
    """
    return kind_of_vectors(report) is None or moved != NOT_MOVED or is_own_run(report)


def read_outcomes(
    report: Report, files: Sequence[Path], *, new_classes: bool, root: Path | None = None
) -> tuple[dict[int, Outcome], int]:
    """Return what people decided on a run's rows, from their files, and how many entries are not decided.

    One reader and one rule for `apply`, `evaluate`, `waive` and `retrain`: rows are named by id, by path, or by a path
    that starts with the folder of the images, `root`.
    """
    if root is None:
        known = RunFolder(report.path.parent).read()
        location = (known.location if known is not None else None) or {}
        path = Path(location.get("path", report.path.parent))
        root = Path(location["root"]) if "root" in location else path if path.is_dir() else path.parent
    decision_files = [read_decisions(file) for file in files]
    entries = [entry for file in decision_files for entry in file.decisions]
    outcomes, unchanged = resolve(report, entries, root=root, new_classes=new_classes)
    return outcomes, unchanged + sum(file.undecided for file in decision_files)


def rewrite_run(
    report: Report,
    column: str,
    values: npt.NDArray[Any],
    *,
    group_by: str | None = None,
    recalibration: Recalibration | None = None,
) -> Report:
    """Replace a column of a finished run's report, and its summary. None: as they were before."""
    old = report.summary

    def write_summary(path: Path) -> None:
        changed = replace(report, _rows=ParquetTable(path.with_name(report.path.name)), path=path)
        summary = summarize(
            changed,
            undecided=old.undecided,
            training=old.training,
            group_by=group_by or (None if old.groups is None else old.groups.column),
            recalibration=recalibration or old.recalibration,
        )
        write_json(path, summary.to_document())

    RunFolder(report.path.parent).replace(
        {
            "report.parquet": lambda path: write_blocks(
                report.blocks_with(column, values), path, report.facts.to_document()
            ),
            "summary.json": write_summary,
        }
    )
    return read_report(report.path)


def pixel_settings_of_run(report: Report) -> PixelSettings:
    """Return the settings that the run read its images with. The cache that a stranger's run names is not used."""
    known = RunFolder(report.path.parent).read()
    if known is None:
        return PixelSettings()
    cache = (known.location or {}).get("cache") if known.own else None
    try:
        settings = PixelSettings(
            max_pixels=known.identity["max_pixels"], cache_dir=None if cache is None else Path(cache)
        )
        # A stranger's run does not raise the limit that protects the memory.
        return (
            settings if known.own else replace(settings, max_pixels=min(settings.max_pixels, PixelSettings.max_pixels))
        )
    except (KeyError, TypeError, UsageError) as error:
        raise StateError(
            f"{report.path.parent / 'run.json'}: damaged ({error}).", "Scan again with --force."
        ) from error


def index_of_run(report: Report, moved: MovedData = NOT_MOVED) -> Index:
    """Return the index that the run was made from. Refused if its rows are not those of the report."""
    source = settings_of_run(report, moved).source
    return align_to_report(report, read_index(source), allow_outside=source.allow_outside)


def index_of_paths(report: Report, moved: MovedData = NOT_MOVED) -> Index:
    """Return the run's rows with their files, by the paths in the report: the dataset itself is not listed or read.

    Whoever reads an image compares its hash with the run's. Where images are embedded, it is `index_of_run`.
    """
    source, paths = settings_of_run(report, moved).source, report.texts("path")
    if kind_of_vectors(report) is None and paths.array.null_count:
        return index_of_run(report, moved)
    is_folder = source.path.is_dir()
    root = source.path if is_folder else source.root or source.path.parent

    def locate(row: int) -> ImageLocation:
        if (path := paths[row]) is None:
            return ImageLocation("")
        file = FilesBelow(root, paths)[row] if is_folder else file_of(str(root), path)
        named = lambda _: str(report.path)  # noqa: E731
        refuse_paths_outside(root, [path], allow_outside=source.allow_outside, name=named, files=[file])
        return ImageLocation(file)

    return Index(source.path.stem, "run", root, report.texts("id"), paths, report.texts("label"), locate)


def align_to_report(report: Report, index: Index, *, allow_outside: bool = False) -> Index:
    """Return the index with exactly the rows of the report.

    Files of an image folder may have been added or removed since the run; a table must be unchanged.
    """
    ids = report.texts("id")
    if index.kind != "folder" or index.ids == ids:
        require_same_rows(report, index)
        return index
    paths = report.texts("path")
    if (ids.codes(index.column("ids")) < 0).all():
        raise StateError(f"{index.root}: has none of the {len(ids):,} images of the run.", "Is --data right?")
    files = FilesBelow(index.root, paths)
    refuse_paths_outside(index.root, paths, allow_outside=allow_outside, name=lambda row: str(report.path), files=files)
    return Index(
        name=index.name,
        kind=index.kind,
        root=index.root,
        ids=ids,
        paths=paths,
        labels=report.texts("label"),
        locate=lambda i: ImageLocation(files[i]),
        splits=report.texts("split") if "split" in report.column_names else None,
    )


def require_same_rows(report: Report, index: Index) -> None:
    """Refuse a dataset whose ids, paths or labels are not those of the run, and name the first difference."""
    columns = (("id", "ids"), ("path", "paths"), ("label", "labels"))
    if not all(report.texts(name).same_as(index.column(own)) for name, own in columns):
        now = zip(index.ids, index.paths, index.labels, strict=True)
        then = zip(*(report.texts(name) for name, _ in columns), strict=True)
        for before, after in zip(then, now, strict=False):
            if before != after:
                was, becomes = next((a, b) for a, b in zip(before, after, strict=True) if a != b)
                raise StateError(
                    f"{index.root}: changed since the run: {before[0]!r} has {becomes!r} instead of {was!r}.",
                    "Scan it again, or give the old dataset.",
                )
    if len(index) != len(report):
        raise StateError(
            f"{index.root}: changed since the run: {len(index):,} rows now, {len(report):,} then.",
            "Scan it again, or give the old dataset.",
        )


def refuse_output_in_dataset(report: Report, out: Path, moved: MovedData) -> None:
    """Refuse an output path inside the dataset, or one that is a file of the run itself."""
    if out.name in (*FILES, "run.json") and out.resolve().parent == report.path.parent.resolve():
        raise OutputError(f"{out}: is a file of the run itself.", "Choose another name with -o.")
    try:
        source = settings_of_run(report, moved).source
    except InputError:
        return  # the dataset is not there
    if source.path.is_dir() and out.resolve().is_relative_to(source.path.resolve()):
        raise OutputError(f"{out}: is inside the dataset.", "Choose a path outside with -o.")
    if out.exists() and out.samefile(source.path):
        raise OutputError(f"{out}: is the dataset itself.", "Choose another name with -o.")
