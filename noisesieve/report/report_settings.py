"""Which rows of a report people are shown, and the file of waivers: options of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from noisesieve.core.options import DATA, OUTPUT, option

WAIVERS = Path(".noisesieve-waivers.csv")  # in the working folder, to be committed
MIN_PROBABILITY = 0.4  # how it was found: noisesieve/bench/README.md


def waivers_option() -> Any:
    """Return the field `waivers`, the same in every command."""
    return option(WAIVERS, "File of reviewed rows whose label is right, as `waive` writes it.", DATA, shared=True)


def min_probability_option(default: float = MIN_PROBABILITY) -> float:
    """Declare --min-probability: which flagged rows people are shown, in page, export and gate alike."""
    text = "Show, export and count only flagged rows that are wrong with at least this probability."
    declared: float = option(default, text, OUTPUT, metavar="P", minimum=0.0, maximum=1.0, shared=True)
    return declared


def group_by_option(panel: str) -> str | None:
    """Declare --group-by."""
    text = "Show flagged and expected wrong by the values of this column, such as annotator."
    declared: str | None = option(None, text, panel, metavar="COLUMN")
    return declared
