"""Write images into an export folder: linked, copied, or extracted from the table they are embedded in."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import PurePosixPath

from noisesieve.core.files import Json
from noisesieve.core.text import folder_name
from noisesieve.exports.job import ExportJob, ImageChanged

_STARTS = (
    (b"\xff\xd8\xff", ".jpg"),
    (b"\x89PNG", ".png"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\0", ".tif"),
    (b"MM\0*", ".tif"),
)
FOLDS_CASE = sys.platform in ("darwin", "win32")  # file systems on which `A` and `a` are the same folder


class ImageWriter:
    """Writes the images of a job into its folder, under unique names, without those that changed since the scan."""

    def __init__(self, job: ExportJob) -> None:
        self._job = job
        self._taken: set[str] = set()
        self._folders: dict[tuple[str, str], str] = {}  # (parent, name) → label
        self._renamed: dict[str, str] = {}
        self._lost: list[str] = []

    def write_all(self, target: Callable[[Json], tuple[tuple[str, ...], str]]) -> list[str | None]:
        """Write every image under the folders and the stem that `target` returns for its row.

        Returns the paths relative to the job's folder; None for an image that changed. Images are written in the
        dataset's order, so that embedded ones are read block by block.
        """
        rows = self._job.rows
        paths: list[str | None] = [None] * len(rows)
        for i in sorted(range(len(rows)), key=lambda i: int(rows[i]["row"])):
            folders, stem = target(rows[i])
            try:
                paths[i] = self._write(i, folders, stem)
            except ImageChanged:
                self._lost.append(rows[i]["id"])
        return paths

    def notes(self) -> list[str]:
        """Return notes about renamed classes and images that were left out."""
        notes = [f"Class {label!r} is in the folder {name!r}." for label, name in list(self._renamed.items())[:10]]
        if self._lost:
            count = "1 image" if len(self._lost) == 1 else f"{len(self._lost):,} images"
            notes.append(f"{count} missing or changed since the run: left out, such as {self._lost[0]!r}.")
        return notes

    def _write(self, i: int, folders: tuple[str, ...], stem: str) -> str:
        job = self._job
        assert job.fetch is not None
        assert job.files is not None
        blob, file = job.fetch(i), job.files[i]
        name = self._name(PurePosixPath(*self._safe(folders)), folder_name(stem), _ending(file, blob), i)
        target = job.out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if file is not None and job.link:
            target.symlink_to(os.path.realpath(file))
        else:
            with target.open("xb") as copy:
                copy.write(blob)
        return name

    def _safe(self, labels: tuple[str, ...]) -> list[str]:
        """Return folder names for these labels; two labels never share one."""
        names: list[str] = []
        for label in labels:
            parent, name = "/".join(names), folder_name(label)
            if self._folders.setdefault((parent, _folded(name)), label) != label:
                name = f"{name}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"
                self._folders[parent, _folded(name)] = label
            if name != label:
                self._renamed[label] = name
            names.append(name)
        return names

    def _name(self, folder: PurePosixPath, stem: str, ending: str, i: int) -> str:
        name = str(folder / f"{stem}{ending}")
        while _folded(name) in self._taken:
            stem = f"{stem}-row{self._job.rows[i]['row']}"
            name = str(folder / f"{stem}{ending}")
        self._taken.add(_folded(name))
        return name


def _ending(file: str | None, blob: bytes) -> str:
    if file is not None and (ending := os.path.splitext(file)[1]):
        return ending
    if blob[8:12] == b"WEBP":
        return ".webp"
    return next((ending for start, ending in _STARTS if blob.startswith(start)), ".img")


def _folded(name: str) -> str:
    return name.casefold() if FOLDS_CASE else name
