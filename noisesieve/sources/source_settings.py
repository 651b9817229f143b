"""Which rows of which dataset: the options of every command that takes one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from noisesieve.core.files import Document
from noisesieve.core.options import DATA, Settings, option


def outside_option() -> bool:
    """Declare --allow-outside."""
    text = "Accept paths and links that lead out of the dataset's folder."
    declared: bool = option(False, text, DATA, shared=True)
    return declared


@dataclass(frozen=True)
class SourceSettings(Settings):
    """Which rows of which dataset."""

    path: Path
    root: Path | None = option(None, "Folder that a table's paths start from. Default: the table's folder.", DATA)
    path_column: str = option("path", "Column with the image paths.", DATA, shared=True)
    label_column: str = option("label", "Column with the given labels.", DATA, shared=True)
    image_column: str | None = option(None, "Column with embedded images. Default: image.", DATA, shared=True)
    id_column: str | None = option(None, "Column with unique ids. Default: the path is the id.", DATA, shared=True)
    trusted_column: str | None = option(None, "Column that marks rows known to be right: never flagged.", DATA)
    split: str | None = option(None, "Use one split only, such as train.", DATA)
    limit: int | None = option(None, "Use a stratified sample of this many rows.", DATA, minimum=2, maximum=10**12)
    limit_seed: int = 0
    allow_outside: bool = outside_option()
    images: bool = True  # False: rows have vectors, and need no image

    def location(self) -> dict[str, Path]:
        """Return the paths that a later command needs to find the dataset again."""
        return {"path": self.path, **({"root": self.root} if self.root is not None else {})}

    def identity(self) -> Document:
        """Return the settings that change results: all but the location of the dataset."""
        chosen = asdict(self)
        del chosen["path"], chosen["root"], chosen["allow_outside"]
        if self.images:
            del chosen["images"]
        return chosen


@dataclass(frozen=True)
class MovedData(Settings):
    """Where a finished run's dataset is, if the run is not to be asked: it was moved, or the run is a stranger's."""

    data: Path | None = option(None, "Path of the dataset, if it was moved or the run is not yours.", DATA)
    root: Path | None = option(None, "Folder of a table's images, if it was moved or the run is not yours.", DATA)
    allow_outside: bool = outside_option()


NOT_MOVED = MovedData()


def embeddings_option(text: str) -> Path | None:
    """Declare --embeddings."""
    text = f"{text}: .npy, .npz or .parquet, by row or by id."
    declared: Path | None = option(None, text, DATA, metavar="FILE")
    return declared
