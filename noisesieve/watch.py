"""Whoever watches a run. Light: the command line loads it before it knows what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from noisesieve.errors import Stopped

Stop = Callable[[], Stopped | None]  # was the run asked to stop?


def warn_all(watcher: Watcher, lines: list[str], most: int = 20) -> None:
    """Warnings, the first ones and a count."""
    for line in lines[:most]:
        watcher.warn(line)
    if len(lines) > most:
        watcher.warn(f"… and {len(lines) - most:,} more")


def pause_of(stop: Stop) -> Callable[[], None]:
    """A moment between two pieces of work, at which a run that was asked to stop does."""

    def pause() -> None:
        if (asked := stop()) is not None:
            raise asked

    return pause


class Watcher(Protocol):
    """Whoever watches a run: the terminal, a test, or nobody."""

    def note(self, text: str) -> None:
        """A line for people."""

    def warn(self, text: str) -> None:
        """A line that people should not miss."""

    def stage(self, name: str, total: int) -> None:
        """A countable piece of work begins."""

    def advance(self, done: int = 1, **facts: Any) -> None:
        """`done` more of it are finished; facts are shown beside the bar."""

    def finish(self) -> None:
        """The piece of work ended."""


class Nobody:
    """A watcher that looks away."""

    def note(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def stage(self, name: str, total: int) -> None: ...
    def advance(self, done: int = 1, **facts: Any) -> None: ...
    def finish(self) -> None: ...
