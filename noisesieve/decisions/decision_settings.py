"""Decision files as an option of several commands."""

from __future__ import annotations

from pathlib import Path

from noisesieve.core.options import DATA, option, parse_paths


def decisions_option(text: str) -> tuple[Path, ...]:
    """Declare --decisions: one or more decision files."""
    text = f"{text}: decisions.csv of the review page, or several files."
    declared: tuple[Path, ...] = option((), text, DATA, parse=parse_paths, metavar="FILES")
    return declared
