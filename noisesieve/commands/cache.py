"""`noisesieve cache`: list and clear the pixels and features that scans keep for later runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from noisesieve.core.command_settings import CacheSettings
from noisesieve.core.files import Document
from noisesieve.pixels import default_cache_dir
from noisesieve.pixels.cache_list import CacheEntryInfo, clear_entries, list_entries


@dataclass(frozen=True)
class CacheListing:
    """A cache folder: the entries that remain, and those that were cleared."""

    folder: Path
    entries: list[CacheEntryInfo]
    cleared: list[CacheEntryInfo]

    def to_document(self) -> Document:
        """Return the listing for --json. Its key for the number of images is `pictures`."""
        parts = {"entries": self.entries, "cleared": self.cleared}
        keys = {"images": "pictures"}
        listed = {
            name: [{keys.get(key, key): value for key, value in vars(entry).items()} for entry in entries]
            for name, entries in parts.items()
        }
        return {"folder": str(self.folder), **listed, "bytes": sum(entry.bytes for entry in self.entries)}


def cache(settings: CacheSettings) -> CacheListing:
    """List the entries of a cache folder; with `clear` remove them first, or those unused for long enough."""
    folder = settings.cache_dir or default_cache_dir()
    entries = list_entries(folder)
    cleared = clear_entries(folder, entries, older_than=settings.older_than) if settings.clear else []
    return CacheListing(folder, [entry for entry in entries if entry not in cleared], cleared)
