"""`noisesieve waive`: reviewed, the label is right."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Annotated

import typer

from noisesieve.cli import options as o
from noisesieve.cli.terminal import results, say
from noisesieve.errors import InputError, UsageError
from noisesieve.settings import WAIVERS

Source = Annotated[Path, typer.Argument(help="A run folder, or a report that `check` wrote.", metavar="RUN_OR_REPORT")]
Names = Annotated[list[str], typer.Argument(help="Ids or paths of reviewed rows.", metavar="PATH...")]
Reason = Annotated[str, typer.Option("--reason", help="Why the label is right.", show_default=False)]
File = Annotated[Path, typer.Option("--file", help="Where waivers are kept; commit it.")]


def waive(
    source: Source,
    names: Names,
    reason: Reason,
    file: File = Path(WAIVERS),
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Note that labels were reviewed and are right: `check` and `scan` no longer count these rows.

    A waiver holds for this content under this label; if either changes, it ends.

    Example: noisesieve waive my-run cat/0012.jpg --reason "a tabby, seen from behind"
    """
    if not reason.strip():
        raise UsageError("--reason is empty.", "Say why the label is right: others will read it.")
    from noisesieve.report import find_rows, read_report
    from noisesieve.report.waivers import Waiver, add_waivers

    report = read_report(source)
    rows = report.table.take(find_rows(report, names)).to_pylist()
    for row in rows:
        if row["status"] != "ok":
            raise InputError(f"{row['id']}: cannot be read ({row['status']}): nobody can have reviewed it.")
        if row["verdict"] != "corrupted" and not quiet:
            say(f"{row['id']}: is {row['verdict']}, and needs no waiver.")
    today = datetime.date.today().isoformat()
    new = [Waiver(row["sha256"], row["label"], row["path"] or row["id"], reason.strip(), today) for row in rows]
    added = add_waivers(file, new)
    with results():
        if as_json:
            print(json.dumps({"file": str(file), "waived": [vars(waiver) for waiver in new], "added": added}))
        elif quiet:
            print(file)
        else:
            print(f"{len(new):,} waived ({added:,} new) in {file}: commit it beside the dataset.")
