"""The options and output of `noisesieve doctor`."""

from __future__ import annotations

import json
from typing import Any

import typer

from noisesieve.cli import options as o
from noisesieve.cli.signals import watched
from noisesieve.cli.terminal import console, results
from noisesieve.core.errors import InputError
from noisesieve.core.options import scan_settings

LISTED = 5


def doctor(
    context: typer.Context,
    data: o.Data,
    root: o.Root = None,
    path_column: o.PathColumn = "path",
    label_column: o.LabelColumn = "label",
    image_column: o.ImageColumn = None,
    id_column: o.IdColumn = None,
    split: o.Split = None,
    limit: o.Limit = None,
    allow_outside: o.AllowOutside = False,
    device: o.Device = "auto",
    workers: o.Workers = None,
    cache_dir: o.CacheDir = None,
    cache: o.UseCache = True,
    strict: o.StrictDoctor = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Check a dataset before a scan: broken files, duplicates, odd classes and sizes, and the cost of a scan.

    Example: noisesieve doctor ./dataset
    """
    ours = ("data", "strict", "as_json", "quiet", "debug")
    settings = scan_settings(data, **{name: value for name, value in context.params.items() if name not in ours})
    from noisesieve.commands.doctor import diagnose

    with watched(quiet) as (watcher, pause):
        found = diagnose(settings, watcher=watcher, pause=pause)
    with results():
        if as_json:
            print(json.dumps(found))
        else:
            _show(found, quiet=quiet)
    if strict and found["wrong"]:
        kinds = ", ".join(finding["kind"] for finding in found["findings"] if finding["wrong"])
        raise InputError(f"{data}: {kinds} (--strict).", "Correct them, or leave --strict out.")


def _show(found: dict[str, Any], *, quiet: bool) -> None:
    from noisesieve.cli.scan import duration
    from noisesieve.cli.terminal import plain_text

    out = console(stderr=False)
    head = f"{found['examples']:,} images, {found['readable']:,} readable, in {found['classes']:,} classes"
    out.print(plain_text(head if found["findings"] else f"{head}: no findings", "bold"))
    for finding in found["findings"]:
        style = "yellow" if finding["wrong"] else ""
        out.print(plain_text(f"{'!' if finding['wrong'] else '·'} {finding['text']}: {finding['count']:,}", style))
        if not quiet:
            for example in finding["examples"][:LISTED]:
                out.print(plain_text(f"    {example}"), soft_wrap=True)
            if finding["count"] > LISTED:
                out.print(plain_text(f"    and {finding['count'] - LISTED:,} more", "dim"))
    if found["plan"] is not None and not quiet:
        cost = found["estimate"]
        out.print()
        out.print(plain_text("Plan of a scan on this machine:"))
        out.print(plain_text(f"  {found['plan']}"), soft_wrap=True)
        out.print(
            plain_text(
                f"  at most about {duration(cost['seconds'])}, {cost['memory_bytes'] / 2**20:,.0f} MiB of memory, "
                f"{cost['cache_bytes'] / 2**20:,.0f} MiB of cache"
            )
        )
