"""An image folder: one sub-folder per class, or train / val / test folders with the same classes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from noisesieve.core.columns import Texts
from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.files import MARK
from noisesieve.core.records import ImageLocation, Index
from noisesieve.core.text import IMAGE_EXTENSIONS, escape_name, natural_key, unescape_name
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.table import TABLE_SUFFIXES, refuse_paths_outside

SPLITS = frozenset(["train", "training", "val", "valid", "validation", "dev", "test", "testing"])
_DETECTION = ({"images", "labels"}, {"annotations", "jpegimages"}, {"annotations", "images"})


@dataclass
class _Rows:
    """The images found so far, in Arrow memory: class by class."""

    paths: list[pa.Array] = field(default_factory=list)  # relative to the root, escaped
    labels: list[pa.Array] = field(default_factory=list)
    splits: list[pa.Array] = field(default_factory=list)

    def add(self, paths: list[str], label: str, split: str | None) -> None:
        """Add the images of one class folder."""
        self.paths.append(pa.array([escape_name(path) for path in paths], pa.large_string()))
        self.labels.append(pa.repeat(pa.scalar(escape_name(label), pa.large_string()), len(paths)).dictionary_encode())
        if split is not None:
            self.splits.append(pa.repeat(pa.scalar(split, pa.large_string()), len(paths)).dictionary_encode())

    def column(self, name: str) -> Texts:
        """Return one of the columns."""
        return Texts(pa.chunked_array(getattr(self, name)))


def read(settings: SourceSettings) -> Index:
    """Index every image below a class folder, each file once, in natural order."""
    root = settings.path
    _refuse_table_options(settings)
    walk = _Walk(root, settings)
    classes = walk.folders(root)
    _refuse_detection(root, classes)
    rows = _Rows()
    if splits := _splits(walk, root, classes):
        for split in splits:
            for label in walk.folders(root / split):
                rows.add(walk.images(root / split / label), label, split)
        for other in set(classes) - set(splits):
            walk.images(root / other)  # has no images, but is named in the notes
    else:
        for label in classes:
            rows.add(walk.images(root / label), label, None)
    if not any(map(len, rows.paths)):
        raise InputError(f"{root}: no images in class folders.", _no_images_hint(root))
    walk.find_strays(root, [root / split for split in splits])
    paths = rows.column("paths")
    files = FilesBelow(root, paths)
    refuse_paths_outside(root, paths, allow_outside=settings.allow_outside, name=lambda row: str(root), files=files)
    return Index(
        name=root.resolve().name or "dataset",
        kind="folder",
        root=root,
        ids=paths,
        paths=paths,
        labels=rows.column("labels"),
        locate=lambda i: ImageLocation(files[i]),
        splits=rows.column("splits") if splits else None,
        notes=walk.notes(),
    )


class FilesBelow(Sequence[str]):
    """The files of escaped paths below a root."""

    def __init__(self, root: Path, paths: Texts) -> None:
        self._root, self._paths = os.fspath(root), paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [os.path.join(self._root, unescape_name(path)) for path in self._paths[place]]
        return os.path.join(self._root, unescape_name(self._paths[place]))

    def __iter__(self) -> Iterator[str]:
        return (os.path.join(self._root, unescape_name(path)) for path in self._paths)


def one_class_hint(root: Path) -> str:
    """Return the next step when only one class was found."""
    inner = sorted((e.name for e in os.scandir(root) if e.is_dir() and not e.name.startswith(".")), key=natural_key)
    for name in inner:
        if name.lower() in SPLITS:
            return f"Did you mean {root / name}?"
    return "Give every class its own folder."


class _Walk:
    """Lists folders and images, each once, and records what it skipped."""

    def __init__(self, root: Path, settings: SourceSettings) -> None:
        self.root, self._settings = root, settings
        self.inside = os.path.realpath(root)
        self.seen: set[str] = set()
        # Names in the order found. Dicts, since looking up a name in a list of a million would be slow.
        self.hidden: dict[str, None] = {}
        self.empty: dict[str, None] = {}
        self.linked: dict[str, None] = {}
        self.runs: dict[str, None] = {}
        self.others: dict[str, None] = {}
        self.strays: dict[str, None] = {}

    def anew(self) -> _Walk:
        """Return a walk that has listed nothing yet."""
        return _Walk(self.root, self._settings)

    def folders(self, folder: Path) -> list[str]:
        """Return the sub-folders that may be classes, in natural order."""
        return sorted((e.name for e in self._entries(folder) if self._is_folder(e)), key=natural_key)

    def images(self, folder: Path) -> list[str]:
        """Return the images below a class folder, also in nested folders, relative to the root, in natural order."""
        paths: list[str] = []
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
                    paths.append(os.path.relpath(entry.path, self.root))
                elif not _is_dir(entry):
                    self._remember(self.others, entry.path)
        if not paths:
            self._remember(self.empty, folder)
        return sorted(paths, key=lambda path: tuple(natural_key(part) for part in path.split(os.sep)))

    def find_strays(self, root: Path, splits: list[Path]) -> None:
        """Record images that are in no class folder."""
        for folder in (root, *splits):
            for entry in self._entries(folder):
                if os.path.splitext(entry.name)[1].lower() in IMAGE_EXTENSIONS and not _is_dir(entry):
                    self._remember(self.strays, entry.path)

    def notes(self) -> list[str]:
        """Return what was skipped, one sentence per kind."""
        lines = (
            ("hidden, skipped", self.hidden),
            ("class folders without images, skipped", self.empty),
            ("links to folders of this dataset or above it, skipped", self.linked),
            ("results of noisesieve, skipped", self.runs),
            ("files without an image's extension, skipped", self.others),
            ("images in no class folder, skipped", self.strays),
        )
        return [f"{what}: {_some(list(names))}" for what, names in lines if names]

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            raise InputError(f"{folder}: cannot be listed: {error.strerror}.", "Check its permissions.") from error
        shown = []
        for entry in entries:
            if entry.name == MARK:  # marks a folder that `export` or `apply` wrote
                continue
            if entry.name.startswith("."):
                self._remember(self.hidden, entry.path)
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
            if os.path.commonpath((real, self.inside)) in (real, self.inside):
                self._remember(self.linked, entry.path)  # its images are listed already, or it is above the root
                return False
            name = escape_name(os.path.relpath(entry.path, self.root))
            refuse_paths_outside(
                self.root,
                [name],
                allow_outside=self._settings.allow_outside,
                name=lambda row: str(self.root),
                files=[entry.path],
            )
        return True

    def _remember(self, names: dict[str, None], path: str | Path) -> None:
        names[escape_name(os.path.relpath(path, self.root))] = None


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a circular link


def _splits(walk: _Walk, root: Path, names: list[str]) -> list[str]:
    """Return the folders that are splits: named like splits, with at least half of their classes in common.

    Other folders beside them (docs, metadata) must contain no images; otherwise all folders are classes.
    """
    splits = [name for name in names if name.lower() in SPLITS]
    if len(splits) < 2:
        return []
    classes = [set(walk.folders(root / name)) for name in splits]
    largest = max(classes, key=len)
    alike = bool(largest) and all(
        names_in_split and len(names_in_split & largest) * 2 >= len(largest) for names_in_split in classes
    )
    others = [name for name in names if name not in splits]
    # A separate walk, since each walk lists every folder only once.
    return splits if alike and not any(walk.anew().images(root / name) for name in others) else []


def _refuse_table_options(settings: SourceSettings) -> None:
    for option in ("root", "image_column", "id_column", "trusted_column"):
        if getattr(settings, option) is not None:
            name = "--" + option.replace("_", "-")
            raise UsageError(
                f"{name} is for tables, and {settings.path} is a folder.", "Leave it out, or give a table."
            )


def _refuse_detection(root: Path, names: list[str]) -> None:
    lower = {name.lower() for name in names}
    for pair in _DETECTION:
        if pair <= lower and lower <= pair | {"imagesets", "segmentationclass", "segmentationobject"} | SPLITS:
            raise InputError(
                f"{root}: looks like a detection dataset (folders {' and '.join(sorted(pair))}).",
                "noisesieve needs one label per image: crop the objects into class folders, or give a table.",
            )


def _no_images_hint(root: Path) -> str:
    files = sorted(entry.name for entry in os.scandir(root) if not entry.name.startswith("."))
    for name in files:
        if os.path.splitext(name)[1].lower() in TABLE_SUFFIXES:
            return f"It contains a table: try {root / name}."
        if name.lower().endswith(".json"):
            return f"It contains {name}: noisesieve needs one label per image, as class folders or as a table."
    if any(os.path.splitext(name)[1].lower() in IMAGE_EXTENSIONS for name in files):
        return "The images are in no class folder: give every class its own folder, or list them in a table."
    return "Give every class its own folder of images, or give a table."


def _some(names: list[str], most: int = 5) -> str:
    shown = ", ".join(sorted(names, key=natural_key)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
