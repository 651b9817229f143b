"""Flipped bits: a file of a run is refused by its name, a row of the cache is the same or counts as missing."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from noisesieve.core.columns import Hashes
from noisesieve.core.errors import NoisesieveError
from noisesieve.core.row_store import RowFile, _read_line
from noisesieve.learn.frozen.features import depth_files
from noisesieve.learn.recipes import HeadRecipe
from noisesieve.pixels.pixel_cache import pixel_file
from noisesieve.report.report import Report, read_report
from noisesieve.report.saved_model import load_model

FAILED = "FAILED"
TABLES = ("probabilities.parquet", "margin_history.parquet", "history.parquet")


def flip(file: Path, rng: random.Random) -> str:
    """Flip one bit of a file, and return what was done."""
    content = bytearray(file.read_bytes())
    place, bit = rng.randrange(len(content)), rng.randrange(8)
    content[place] ^= 1 << bit
    file.write_bytes(content)
    return f"bit {bit} of byte {place} of {file.name}"


def cached_files(home: Path) -> list[Path]:
    """Return the files of the cache that have content."""
    return [path for path in sorted((home / "cache").rglob("*")) if path.is_file() and path.stat().st_size]


def flip_bits(home: Path, count: int, rng: random.Random) -> Counter[str]:
    """Flip bits in the files of a finished frozen run and of its cache, one at a time."""
    folder = home / "run"
    report = read_report(folder)
    wanted = report.table, report.summary
    run_files = [folder / name for name in ("run.json", *_known_files(folder))]
    recipe = report.summary.training.recipe
    assert isinstance(recipe, HeadRecipe)
    stored = {store.file: _rows(store) for store in _stores(home, recipe)}
    found: Counter[str] = Counter()
    for number in range(count):
        file = rng.choice(cached_files(home) if number % 4 == 0 else run_files)
        content = file.read_bytes()
        what = flip(file, rng)
        if file in run_files:
            found[f"in the run, {_read(folder, file, wanted, what)}"] += 1
        else:
            now = {store.file: _rows(store) for store in _stores(home, recipe)}
            known = ((stored[name].get(key, row), row) for name, rows in now.items() for key, row in rows.items())
            wrong = any(before != row for before, row in known)  # a name that no image has does no harm
            lost = sum(len(stored[name]) - len(rows) for name, rows in now.items())
            outcome = "rows are made anew" if lost else "no row is touched"
            found[f"{FAILED} another row, {what}" if wrong else f"in the cache, {outcome}"] += 1
        file.write_bytes(content)
    return found


def _known_files(folder: Path) -> list[str]:
    unknown = (".lock", "run.json", "review.html")
    return [path.name for path in sorted(folder.iterdir()) if path.is_file() and path.name not in unknown]


def _read(folder: Path, file: Path, wanted: tuple[object, object], what: str) -> str:
    """Read everything of a run, and return what came of it."""
    try:
        found = read_report(folder)
        _read_all(found, folder)
        same = found.table.equals(wanted[0]) and found.summary == wanted[1]
        return "the same result" if same else f"{FAILED} another result: {what}"
    except NoisesieveError as error:
        right = error.exit_code == 5 and (file.name in str(error) or file.name == "model.safetensors")
        return "refused, exit 5" if right else f"{FAILED} {what}: exit {error.exit_code}, {error}"
    except Exception as error:
        return f"{FAILED} {what}: {type(error).__name__}: {error}"


def _read_all(report: Report, folder: Path) -> None:
    load_model(folder, torch.device("cpu"))
    for name in TABLES:
        report.read_beside(name)


def _stores(home: Path, recipe: HeadRecipe) -> list[RowFile]:
    stores: list[RowFile] = []
    for entry in sorted(path for path in (home / "cache").iterdir() if path.is_dir()):
        if entry.name.endswith("-pixels"):
            stores.append(pixel_file(entry, int(entry.name.partition("px")[0])))
        else:
            stores.extend(depth_files(entry, recipe))
    return stores


def _rows(store: RowFile) -> dict[str, bytes]:
    """Return the rows that a scan would use, by content."""
    lines = store.file.with_suffix(".chunks").read_bytes().splitlines()
    chunks = [chunk for line in lines if (chunk := _read_line(line)) is not None]
    contents = Hashes(sorted({content for chunk in chunks for content in chunk.contents}))
    store.drop_damaged(contents)
    left = contents.take(np.flatnonzero(~store.missing(contents)))
    rows = store.open()
    return {content: rows[slot].tobytes() for content, slot in zip(left, store.slots(left).tolist(), strict=True)}
