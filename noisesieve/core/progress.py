"""Progress messages and stop requests. Imports nothing heavy: the command line loads it at start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from noisesieve.core.errors import Stopped

Stop = Callable[[], Stopped | None]  # returns the error to raise if a stop was requested, else None


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


def never() -> None:
    """No stop is requested."""


@dataclass(frozen=True)
class Session:
    """One running command: who watches it, and whether it was asked to stop."""

    watcher: Watcher = field(default_factory=NullWatcher)
    stop: Stop = never
    _said: set[str] = field(default_factory=set, kw_only=True, repr=False)

    def pause(self) -> None:
        """Raise `Stopped` if a stop was requested. Called between two pieces of work."""
        if (stopped := self.stop()) is not None:
            raise stopped

    def without_time_limit(self) -> Self:
        """Return the session, stopped by signals only."""

        def stop() -> Stopped | None:
            stopped = self.stop()
            return None if stopped is None or stopped.by_time else stopped

        return replace(self, stop=stop)

    def note(self, text: str) -> None:
        """Show a line of information."""
        self.watcher.note(text)

    def warn(self, text: str) -> None:
        """Show a warning."""
        self.watcher.warn(text)

    def warn_once(self, text: str) -> None:
        """Show a warning, unless this command has shown it already."""
        if text not in self._said:
            self._said.add(text)
            self.warn(text)

    def note_all(self, lines: list[str]) -> None:
        """Say every line."""
        for line in lines:
            self.note(line)

    def warn_all(self, lines: list[str], most: int = 20) -> None:
        """Warn with the first `most` lines, then with a count of the rest."""
        for line in lines[:most]:
            self.warn(line)
        if len(lines) > most:
            self.warn(f"… and {len(lines) - most:,} more")

    def stage(self, name: str, total: int) -> None:
        """Start a progress bar over `total` items."""
        self.watcher.stage(name, total)

    def advance(self, done: int = 1, **facts: Any) -> None:
        """Add `done` finished items to the bar."""
        self.watcher.advance(done, **facts)

    def finish(self) -> None:
        """Close the progress bar."""
        self.watcher.finish()
