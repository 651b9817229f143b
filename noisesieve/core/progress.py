"""Progress messages and stop requests. Imports nothing heavy: the command line loads it at start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from noisesieve.core.errors import Stopped

Stop = Callable[[], Stopped | None]  # returns the error to raise if the run was asked to stop, else None


def warn_all(watcher: Watcher, lines: list[str], most: int = 20) -> None:
    """Warn with the first `most` lines, then with a count of the rest."""
    for line in lines[:most]:
        watcher.warn(line)
    if len(lines) > most:
        watcher.warn(f"… and {len(lines) - most:,} more")


def pause_of(stop: Stop) -> Callable[[], None]:
    """Return a function that raises `Stopped` if a stop was requested. Called between two pieces of work."""

    def pause() -> None:
        if (stopped := stop()) is not None:
            raise stopped

    return pause


class Watcher(Protocol):
    """Receives the progress of a run: the terminal, a test, or `NullWatcher`."""

    def note(self, text: str) -> None:
        """Show a line of information."""

    def warn(self, text: str) -> None:
        """Show a warning. It is shown with `--quiet` too."""

    def stage(self, name: str, total: int) -> None:
        """Start a progress bar over `total` items."""

    def advance(self, done: int = 1, **facts: Any) -> None:
        """Add `done` finished items; `facts` are shown beside the bar."""

    def finish(self) -> None:
        """Close the progress bar."""


class NullWatcher:
    """A watcher that shows nothing."""

    def note(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def stage(self, name: str, total: int) -> None: ...
    def advance(self, done: int = 1, **facts: Any) -> None: ...
    def finish(self) -> None: ...
