"""An image folder again, with some pictures under another class; links or copies of the old files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from noisesieve.errors import InputError
from noisesieve.names import unescape_name
from noisesieve.records import Index


def plant_tree(index: Index, labels: list[str], out: Path, *, link: bool) -> list[str]:
    """Fill an empty folder with every row of an image folder, each under its new label; notes for people."""
    depth = 0 if index.splits is None else 1  # class/… or split/class/…
    names = [_name(str(path), label, depth) for path, label in zip(index.paths, labels, strict=True)]
    stays = [label == old for label, old in zip(labels, index.labels, strict=True)]
    taken = {name for name, stay in zip(names, stays, strict=True) if stay}  # whoever moves in gives way
    moved_aside = 0
    for row, name in enumerate(names):
        if not stays[row] and name in taken:
            stem, ending = os.path.splitext(name)
            name = f"{stem}-row{row}{ending}"
            moved_aside += 1
        taken.add(name)
        target = out / name
        if not target.resolve().is_relative_to(out.resolve()):
            raise InputError(f"{labels[row]!r} is no name for a class folder.", "Decide for another class.")
        target.parent.mkdir(parents=True, exist_ok=True)
        file = index.places(row).file
        if link:
            target.symlink_to(os.path.realpath(file))
        else:
            shutil.copyfile(file, target)
    return [f"{moved_aside:,} files got a row number: their name was taken in the new class."] if moved_aside else []


def _name(path: str, label: str, depth: int) -> str:
    """Where a picture goes: its own path with the class's folder exchanged."""
    parts = Path(unescape_name(path)).parts
    return os.path.join(*parts[:depth], unescape_name(label), *parts[depth + 1 :])
