"""`noisesieve waive`: record that labels were reviewed and are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noisesieve.commands._open_run import read_outcomes
from noisesieve.commands.command_settings import WaiveSettings
from noisesieve.core.errors import InputError
from noisesieve.core.progress import Session
from noisesieve.report.report import Report, find_rows, read_report
from noisesieve.report.waivers import Waiver, add_waivers, waiver_of

NEEDED = ("row", "id", "path", "label", "verdict", "status", "sha256")  # columns


@dataclass(frozen=True)
class WaiveResult:
    """The waivers that were asked for, and how many of them were not in the file before."""

    waivers: list[Waiver]
    added: int


def waive(source: Path, names: Sequence[str], settings: WaiveSettings, *, session: Session) -> WaiveResult:
    """Add waivers for these rows of a run, or of a report that `check` wrote, and for rows that people kept."""
    report = read_report(source)
    kept = _kept(report, settings, session)
    wanted = list(dict.fromkeys([*find_rows(report, names), *kept]))
    rows = report.take(np.array(wanted, dtype=np.int64), *NEEDED).to_pylist()
    for row in rows:
        if row["status"] != "ok":
            raise InputError(f"{row['id']}: cannot be read ({row['status']}), so it cannot have been reviewed.")
        if row["verdict"] != "corrupted" and row["row"] not in kept:
            session.note(f"{row['id']}: is {row['verdict']} and needs no waiver.")
    waivers = [waiver_of(row, settings.reason.strip() or kept.get(row["row"], "reviewed")) for row in rows]
    return WaiveResult(waivers, add_waivers(settings.file, waivers))


def _kept(report: Report, settings: WaiveSettings, session: Session) -> dict[int, str]:
    """Return the rows whose label people kept, with the reason for the waiver."""
    if not settings.decisions:
        return {}
    outcomes, _ = read_outcomes(report, settings.decisions, new_classes=True)
    kept = {row: outcome.reason for row, outcome in outcomes.items() if outcome.decision == "keep"}
    if others := len(outcomes) - len(kept):
        session.note(f"{others:,} decisions change a label or call the image unusable: `apply` takes these.")
    if not kept:
        raise InputError("No label was kept in these decisions.", "Nothing was written.")
    return kept
