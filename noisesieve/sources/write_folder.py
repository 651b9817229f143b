"""Write an image folder with some images moved to another class, as links to or copies of the old files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from noisesieve.core.errors import InputError
from noisesieve.core.records import Index
from noisesieve.core.text import unescape_name
from noisesieve.core.untrusted import open_regular


def write_folder(index: Index, labels: Sequence[str], out: Path, *, link: bool) -> list[str]:
    """Fill an empty folder with every row of an image folder, each under its new label. Returns notes."""
    for label in sorted(set(labels) - set(index.labels)):
        _require_folder_name(label)
    depth = 0 if index.splits is None else 1  # class/… or split/class/…
    names = [_name(str(path), label, depth) for path, label in zip(index.paths, labels, strict=True)]
    stays = [label == old for label, old in zip(labels, index.labels, strict=True)]
    taken = {name for name, stay in zip(names, stays, strict=True) if stay}  # files that stay keep their name
    renamed = lost = 0
    for row, name in enumerate(names):
        if not stays[row]:
            stem, ending = os.path.splitext(name)
            renamed += name in taken
            while name in taken:
                stem = f"{stem}-row{row}"
                name = f"{stem}{ending}"
            taken.add(name)
        file, target = index.locate(row).file, out / name
        if not os.path.isfile(file):  # a broken link
            lost += 1
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if link:
            target.symlink_to(os.path.realpath(file))
        else:
            with open_regular(file) as source, target.open("xb") as copy:
                shutil.copyfileobj(source, copy)
    notes = [f"{renamed:,} files got a row number: their name exists in the new class."] if renamed else []
    return [*notes, f"{lost:,} entries are not files and were left out."] if lost else notes


def _require_folder_name(label: str) -> None:
    """Refuse a new class that is not one visible folder: `scan` would not find it."""
    name = unescape_name(label)
    if name.startswith(".") or any(bad in name for bad in ("/", "\0", os.sep)):
        raise InputError(f"{label!r} cannot be the name of a class folder.", "Choose another class.")


def _name(path: str, label: str, depth: int) -> str:
    """Return the new path of an image: its old path with the class folder replaced."""
    parts = Path(unescape_name(path)).parts
    return os.path.join(*parts[:depth], unescape_name(label), *parts[depth + 1 :])
