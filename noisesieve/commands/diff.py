"""`noisesieve diff`: the suspects of two runs side by side."""

from __future__ import annotations

from pathlib import Path

from noisesieve.report.compare import ChangedSuspect, RunComparison, SuspectCount, compare
from noisesieve.report.report import read_report

__all__ = ["ChangedSuspect", "RunComparison", "SuspectCount", "diff"]


def diff(before: Path, after: Path) -> RunComparison:
    """Return which suspects are new, fixed, cleared, waived, gone or persistent, and the rates by class."""
    return compare(read_report(before), read_report(after))
