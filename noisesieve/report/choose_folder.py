"""Which folder a run is written to, where the user names none."""

from __future__ import annotations

from pathlib import Path

from noisesieve.core.errors import OutputError, StateError
from noisesieve.core.progress import Session
from noisesieve.core.records import Index
from noisesieve.core.text import folder_name
from noisesieve.core.untrusted import refuse_link
from noisesieve.report.run import RunFolder

RUNS = Path("noisesieve-runs")  # where run folders go without -o


def output_folder(wanted: Path | None, index: Index, session: Session) -> Path:
    """Return the run folder. It is never inside an image folder, whose sub-folders are classes."""
    name = folder_name(index.name)
    folder = wanted or RUNS / name
    if wanted is None:
        refuse_link(RUNS)
    if index.kind != "folder" or not folder.resolve().is_relative_to(index.root.resolve()):
        return folder
    if wanted is not None:
        raise OutputError(f"{folder}: is inside the dataset.", "Choose a folder outside with -o.")
    folder = index.root.resolve().parent / RUNS / name
    refuse_link(folder.parent)
    session.note(f"The working folder is the dataset itself: the run is written to {folder}.")
    return folder


def next_folder(folder: Path, decisions: str) -> Path:
    """Return the folder of a run that learns from decisions: beside an earlier run `…-2`, or the first that is free."""
    for number in range(2, 10_000):
        numbered = folder.with_name(f"{folder.name}-{number}")
        try:
            known = RunFolder(numbered).read()
        except StateError:
            continue  # damaged: not ours to replace
        if known is None or known.identity.get("decisions") == decisions:
            return numbered
    return folder
