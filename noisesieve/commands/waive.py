"""`noisesieve waive`: record that labels were reviewed and are right."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from noisesieve.core.command_settings import WaiveSettings
from noisesieve.core.errors import InputError
from noisesieve.core.progress import Session
from noisesieve.report import find_rows, read_report
from noisesieve.report.waivers import Waiver, add_waivers


@dataclass(frozen=True)
class WaiveResult:
    """The waivers that were asked for, and how many of them were not in the file before."""

    waivers: list[Waiver]
    added: int


def waive(source: Path, names: Sequence[str], settings: WaiveSettings, *, session: Session) -> WaiveResult:
    """Add waivers for these rows of a run, or of a report that `check` wrote."""
    report = read_report(source)
    rows = report.table.take(find_rows(report, names)).to_pylist()
    for row in rows:
        if row["status"] != "ok":
            raise InputError(f"{row['id']}: cannot be read ({row['status']}), so it cannot have been reviewed.")
        if row["verdict"] != "corrupted":
            session.note(f"{row['id']}: is {row['verdict']} and needs no waiver.")
    reason = settings.reason.strip()
    today = datetime.date.today().isoformat()
    waivers = [Waiver(row["sha256"], row["label"], row["path"] or row["id"], reason, today) for row in rows]
    return WaiveResult(waivers, add_waivers(settings.file, waivers))
