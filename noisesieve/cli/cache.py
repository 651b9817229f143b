"""`noisesieve cache`: what scans left on disk."""

from __future__ import annotations

import json
from typing import Annotated

from noisesieve.cli import options as o
from noisesieve.cli.terminal import console, results
from noisesieve.errors import UsageError

Clear = Annotated[bool, o.option("Remove all of it.", "--clear")]
OlderThan = Annotated[str | None, o.option("With --clear: only what was not used for 30d, 12h or 90m.")]


def cache(
    clear: Clear = False,
    older_than: OlderThan = None,
    cache_dir: o.CacheDir = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """List the decoded pictures and features that scans keep for later runs, or clear them.

    Example: noisesieve cache --clear --older-than 30d
    """
    age = o.age(older_than)
    if older_than is not None and not clear:
        raise UsageError("--older-than is for --clear.", "Add --clear, or leave it out.")
    from noisesieve.pixels import default_cache_dir
    from noisesieve.pixels.cache import clear as remove
    from noisesieve.pixels.cache import entries

    folder = cache_dir or default_cache_dir()
    found = entries(folder)
    gone = remove(folder, found, older_than=age) if clear else []
    left = [entry for entry in found if entry not in gone]
    total = sum(entry.bytes for entry in left)
    with results():
        if as_json:
            document = {"folder": str(folder), "entries": [vars(e) for e in left], "cleared": [vars(e) for e in gone]}
            print(json.dumps({**document, "bytes": total}))
            return
        if quiet:
            print(folder)
            return
        from noisesieve.cli.summary import plain_table, plain_text

        out = console(stderr=False)
        if gone:
            freed = sum(entry.bytes for entry in gone) / 2**20
            out.print(plain_text(f"Cleared {len(gone):,} entries, {freed:,.1f} MiB."))
        out.print(plain_text(f"{folder}: {len(left):,} entries, {total / 2**20:,.1f} MiB", "bold"), soft_wrap=True)
        if left:
            table = plain_table()
            for name in ("pictures", "kept as", "size", "MiB", "last used"):
                table.add_column(name, justify="right")
            for entry in left:
                size = f"{entry.size} px"
                table.add_row(
                    f"{entry.pictures:,}", entry.kind, size, f"{entry.bytes / 2**20:,.1f}", entry.last_used[:16]
                )
            out.print(table)
