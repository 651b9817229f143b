"""The options and output of `noisesieve cache`."""

from __future__ import annotations

from noisesieve.cli import options as o
from noisesieve.cli.terminal import console, print_json, print_line, results
from noisesieve.commands.command_settings import CacheSettings
from noisesieve.core.options import build_settings


@o.with_options(CacheSettings)
def cache(
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """List the decoded images and features that scans keep for later runs, or clear them.

    Example: noisesieve cache --clear --older-than 30d
    """
    settings = build_settings(CacheSettings, options)
    from noisesieve.commands.cache import cache as list_or_clear

    listing = list_or_clear(settings)
    folder, left, gone = listing.folder, listing.entries, listing.cleared
    total = sum(entry.bytes for entry in left)
    with results():
        if as_json:
            print_json(listing.to_document())
            return
        if quiet:
            print_line(folder)
            return
        from noisesieve.cli.terminal import plain_table, plain_text

        out = console(stderr=False)
        if gone:
            freed = sum(entry.bytes for entry in gone) / 2**20
            out.print(plain_text(f"Cleared {len(gone):,} entries, {freed:,.1f} MiB."))
        out.print(plain_text(f"{folder}: {len(left):,} entries, {total / 2**20:,.1f} MiB", "bold"), soft_wrap=True)
        if left:
            table = plain_table()
            for name in ("images", "kind", "size", "MiB", "last used"):
                table.add_column(name, justify="right")
            for entry in left:
                size = f"{entry.size} px"
                table.add_row(
                    f"{entry.images:,}", entry.kind, size, f"{entry.bytes / 2**20:,.1f}", entry.last_used[:16]
                )
            out.print(table)
