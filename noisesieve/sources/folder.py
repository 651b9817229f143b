"""An image folder: one sub-folder a class, or train / val / test folders that hold the same classes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from noisesieve.errors import InputError
from noisesieve.names import IMAGE_EXTENSIONS, escape_name, natural_key
from noisesieve.records import Index, Place
from noisesieve.settings import SourceSettings

SPLITS = frozenset(["train", "training", "val", "valid", "validation", "dev", "test", "testing"])
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
_DETECTION = ({"images", "labels"}, {"annotations", "jpegimages"}, {"annotations", "images"})


class _Found(NamedTuple):
    label: str
    path: str  # relative to the root, as the file system spells it
    split: str | None


def read(settings: SourceSettings) -> Index:
    """Every image below a class folder, each file once, in natural order."""
    root = settings.path
    walk = _Walk(root)
    classes = walk.folders(root)
    _refuse_detection(root, classes)
    if _are_splits(walk, root, classes):
        found = [
            _Found(label, path, split)
            for split in classes
            for label in walk.folders(root / split)
            for path in walk.images(root / split / label)
        ]
    else:
        found = [_Found(label, path, None) for label in classes for path in walk.images(root / label)]
    if not found:
        raise InputError(f"{root}: no images in class folders.", _no_images_hint(root))
    paths = [escape_name(row.path) for row in found]
    files = [os.path.join(root, row.path) for row in found]
    return Index(
        name=root.resolve().name or "dataset",
        kind="folder",
        root=root,
        ids=list(paths),
        paths=list(paths),
        labels=[escape_name(row.label) for row in found],
        places=lambda i: Place(files[i]),
        splits=[str(row.split) for row in found] if found[0].split else None,
        notes=walk.notes(),
    )


def one_class_hint(root: Path) -> str:
    """What to type when only one class was found."""
    inner = sorted((e.name for e in os.scandir(root) if e.is_dir() and not e.name.startswith(".")), key=natural_key)
    for name in inner:
        if name.lower() in SPLITS:
            return f"Did you mean {root / name}?"
    return "Give every class its own folder."


class _Walk:
    """Lists folders and images without loops, and remembers what it passed over."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inside = os.path.realpath(root)
        self.seen: set[str] = set()
        self.hidden: list[str] = []
        self.empty: list[str] = []
        self.linked: list[str] = []
        self.runs: list[str] = []
        self.others: list[str] = []

    def folders(self, folder: Path) -> list[str]:
        """Sub-folders that may be classes, in natural order."""
        return sorted((e.name for e in self._entries(folder) if self._is_folder(e)), key=natural_key)

    def images(self, folder: Path) -> list[str]:
        """Images below a class folder, relative to the root, in natural order; nested folders are allowed."""
        found: list[str] = []
        queue = [folder]
        while queue:
            here = queue.pop()
            real = os.path.realpath(here)
            if real in self.seen:
                continue
            self.seen.add(real)
            for entry in self._entries(here):
                if self._is_folder(entry):
                    queue.append(Path(entry.path))
                elif os.path.splitext(entry.name)[1].lower() in IMAGE_EXTENSIONS and not _is_dir(entry):
                    found.append(os.path.relpath(entry.path, self.root))
                elif not _is_dir(entry):
                    self.others.append(self._shown(entry.path))
        if not found:
            self.empty.append(self._shown(folder))
        return sorted(found, key=lambda path: tuple(natural_key(part) for part in path.split(os.sep)))

    def notes(self) -> list[str]:
        """What was skipped, one sentence each."""
        lines = (
            ("hidden, skipped", self.hidden),
            ("class folders without images, skipped", self.empty),
            ("links to folders of this dataset, skipped", self.linked),
            ("results of noisesieve, skipped", self.runs),
            ("files without an image's extension, skipped", self.others),
        )
        return [f"{what}: {_some(names)}" for what, names in lines if names]

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            raise InputError(f"{folder}: cannot be listed: {error.strerror}.", "Check its permissions.") from error
        shown = []
        for entry in entries:
            if entry.name.startswith("."):
                name = self._shown(entry.path)
                if name not in self.hidden:
                    self.hidden.append(name)
            else:
                shown.append(entry)
        return shown

    def _is_folder(self, entry: os.DirEntry[str]) -> bool:
        if not _is_dir(entry):
            return False
        if os.path.exists(os.path.join(entry.path, "run.json")):
            self._remember(self.runs, entry.path)
            return False
        if entry.is_symlink():
            real = os.path.realpath(entry.path)
            if real == self.inside or real.startswith(self.inside + os.sep) or self.inside.startswith(real + os.sep):
                self._remember(self.linked, entry.path)  # its images have their row already
                return False
        return True

    def _remember(self, names: list[str], path: str) -> None:
        if (name := self._shown(path)) not in names:
            names.append(name)

    def _shown(self, path: str | Path) -> str:
        return escape_name(os.path.relpath(path, self.root))


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that leads in a circle


def _are_splits(walk: _Walk, root: Path, names: list[str]) -> bool:
    """True where every folder is named like a split and they hold the same classes, at least half of them."""
    if len(names) < 2 or not all(name.lower() in SPLITS for name in names):
        return False
    classes = [set(walk.folders(root / name)) for name in names]
    largest = max(classes, key=len)
    return bool(largest) and all(found and len(found & largest) * 2 >= len(largest) for found in classes)


def _refuse_detection(root: Path, names: list[str]) -> None:
    lower = {name.lower() for name in names}
    for pair in _DETECTION:
        if pair <= lower and lower <= pair | {"imagesets", "segmentationclass", "segmentationobject"} | SPLITS:
            raise InputError(
                f"{root}: looks like a detection dataset (folders {' and '.join(sorted(pair))}).",
                "noisesieve judges one label an image: crop the objects into class folders, or give a table.",
            )


def _no_images_hint(root: Path) -> str:
    files = sorted(entry.name for entry in os.scandir(root) if not entry.name.startswith("."))
    for name in files:
        if name.lower().endswith(TABLES):
            return f"It holds a table: try {root / name}."
        if name.lower().endswith(".json"):
            return f"It holds {name}: noisesieve needs one label an image, as a folder a class or as a table."
    if any(os.path.splitext(name)[1].lower() in IMAGE_EXTENSIONS for name in files):
        return "The images lie in no class folder: give every class its own folder, or list them in a table."
    return "Give every class its own folder of images, or give a table."


def _some(names: list[str], most: int = 5) -> str:
    shown = ", ".join(sorted(names, key=natural_key)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
