"""`noisesieve cache`: list and clear the pixels and features that scans keep for later runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from noisesieve.commands.command_settings import CacheSettings
from noisesieve.core.files import Document
from noisesieve.pixels.cache_list import CacheEntryInfo, clear_entries, list_entries
from noisesieve.pixels.pixel_cache import default_cache_dir

SCHEMA_VERSION = 2  # of the listing


@dataclass(frozen=True)
class CacheListing:
    """A cache folder: the entries that remain, and those that were cleared."""

    folder: Path
    entries: list[CacheEntryInfo]
    cleared: list[CacheEntryInfo]

    def to_document(self) -> Document:
        """Return the listing for --json."""
        listed = {
            "entries": [vars(entry) for entry in self.entries],
            "cleared": [vars(entry) for entry in self.cleared],
        }
        total = sum(entry.bytes for entry in self.entries)
        return {"schema_version": SCHEMA_VERSION, "folder": str(self.folder), **listed, "bytes": total}


def cache(settings: CacheSettings) -> CacheListing:
    """List the entries of a cache folder; with `clear` remove them first, or those unused for long enough."""
    folder = settings.cache_dir or default_cache_dir()
    entries = list_entries(folder)
    cleared = clear_entries(folder, entries, older_than=settings.older_than) if settings.clear else []
    return CacheListing(folder, [entry for entry in entries if entry not in cleared], cleared)
