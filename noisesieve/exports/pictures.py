"""Pictures into a folder of ours: linked, copied, or written out of the table they are embedded in."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from noisesieve.exports.parcel import Lost, Parcel
from noisesieve.names import folder_name

_STARTS = (
    (b"\xff\xd8\xff", ".jpg"),
    (b"\x89PNG", ".png"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\0", ".tif"),
    (b"MM\0*", ".tif"),
)
FOLDS_CASE = sys.platform in ("darwin", "win32")  # there `A` and `a` are one folder


class Places:
    """Puts the pictures of a parcel into its folder, never two under one name, each the one that was scanned."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel
        self._taken: set[str] = set()
        self._folders: dict[tuple[str, str], str] = {}  # above, name → the label it stands for
        self._renamed: dict[str, str] = {}
        self._lost: list[str] = []

    def put_all(self, place: Callable[[dict[str, Any]], tuple[tuple[str, ...], str]]) -> list[str | None]:
        """Place every picture under the folders and the stem that `place` gives; their paths below the parcel's folder.

        In the dataset's order, so that embedded pictures are read block by block; None where a picture is lost.
        """
        rows = self._parcel.rows
        found: list[str | None] = [None] * len(rows)
        for i in sorted(range(len(rows)), key=lambda i: int(rows[i]["row"])):
            folders, stem = place(rows[i])
            try:
                found[i] = self._put(i, folders, stem)
            except Lost:
                self._lost.append(rows[i]["id"])
        return found

    def notes(self) -> list[str]:
        """What is not as one would expect."""
        notes = [f"Class {label!r} lies in the folder {name!r}." for label, name in list(self._renamed.items())[:10]]
        if self._lost:
            count = "1 picture" if len(self._lost) == 1 else f"{len(self._lost):,} pictures"
            notes.append(f"{count} gone or changed since the run: left out, such as {self._lost[0]!r}.")
        return notes

    def _put(self, i: int, folders: tuple[str, ...], stem: str) -> str:
        parcel = self._parcel
        assert parcel.fetch is not None
        assert parcel.files is not None
        blob, file = parcel.fetch(i), parcel.files[i]
        name = self._name(PurePosixPath(*self._safe(folders)), folder_name(stem), _ending(file, blob), i)
        target = parcel.out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if file is not None and parcel.link:
            target.symlink_to(os.path.realpath(file))
        else:
            target.write_bytes(blob)
        return name

    def _safe(self, labels: tuple[str, ...]) -> list[str]:
        """Folder names for these labels; two labels never share one."""
        made: list[str] = []
        for label in labels:
            above, name = "/".join(made), folder_name(label)
            if self._folders.setdefault((above, _folded(name)), label) != label:
                name = f"{name}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"
                self._folders[above, _folded(name)] = label
            if name != label:
                self._renamed[label] = name
            made.append(name)
        return made

    def _name(self, folder: PurePosixPath, stem: str, ending: str, i: int) -> str:
        name = str(folder / f"{stem}{ending}")
        if _folded(name) in self._taken:
            name = str(folder / f"{stem}-row{self._parcel.rows[i]['row']}{ending}")
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
