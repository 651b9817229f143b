"""Pictures into a folder of ours: linked, copied, or written out of the table they are embedded in."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import PurePosixPath

from noisesieve.exports.parcel import Parcel
from noisesieve.names import folder_name

_STARTS = (
    (b"\xff\xd8\xff", ".jpg"),
    (b"\x89PNG", ".png"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\0", ".tif"),
    (b"MM\0*", ".tif"),
)


class Places:
    """Puts the pictures of a parcel into its folder, never two under one name."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel
        self._taken: set[str] = set()
        self._folders: dict[tuple[str, str], str] = {}
        self._lost: list[str] = []

    def put(self, i: int, parts: tuple[str, ...]) -> str | None:
        """Place picture i under these folders; its path below the parcel's folder, or None where it is lost."""
        parcel = self._parcel
        row, file = parcel.rows[i], parcel.files[i] if parcel.files is not None else None
        try:
            blob = self._bytes(i) if file is None else b""
            if file is not None and not os.path.isfile(file):
                raise FileNotFoundError(file)
            folder = PurePosixPath(*self._safe(parts)) if parts else PurePosixPath()
            target = parcel.out / self._name(folder, row, blob)
            target.parent.mkdir(parents=True, exist_ok=True)
            if file is None:
                target.write_bytes(blob)
            elif parcel.link:
                target.symlink_to(os.path.realpath(file))
            else:
                shutil.copyfile(file, target)
        except OSError:
            self._lost.append(row["id"])
            return None
        return target.relative_to(parcel.out).as_posix()

    def notes(self) -> list[str]:
        """What could not be placed."""
        if not self._lost:
            return []
        return [f"{len(self._lost):,} pictures are no longer there and were left out, such as {self._lost[0]!r}."]

    def _bytes(self, i: int) -> bytes:
        assert self._parcel.fetch is not None
        return self._parcel.fetch(i)

    def _safe(self, parts: tuple[str, ...]) -> list[str]:
        """Folder names for these labels; two labels never share one."""
        made: list[str] = []
        for part in parts:
            above = "/".join(made)
            name, known = folder_name(part), self._folders
            if known.setdefault((above, name.casefold()), part) != part:
                name = f"{name}-{hashlib.sha256(part.encode()).hexdigest()[:6]}"
                known[above, name.casefold()] = part
            made.append(name)
        return made

    def _name(self, folder: PurePosixPath, row: dict[str, object], blob: bytes) -> str:
        path = row["path"]
        stem, ending = os.path.splitext(folder_name(str(path).rsplit("/", 1)[-1])) if path else (f"{row['row']}", "")
        ending = ending or next((ending for start, ending in _STARTS if blob.startswith(start)), ".img")
        if blob[8:12] == b"WEBP":
            ending = ".webp"
        name = str(folder / f"{stem}{ending}")
        if name.casefold() in self._taken:
            name = str(folder / f"{stem}-row{row['row']}{ending}")
        self._taken.add(name.casefold())
        return name
