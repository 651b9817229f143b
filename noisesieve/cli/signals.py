"""Ctrl-C, SIGTERM and --max-time: finish the step, write a checkpoint, stop. A second signal ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from noisesieve.cli.terminal import TerminalWatcher, WarningsOnly
from noisesieve.core.errors import Stopped
from noisesieve.core.progress import Session, Watcher

RESUMES = "Run the same command again to resume."


class StopRequest:
    """Returns a `Stopped` error once a signal arrived or the time is over. Commands call it between steps."""

    def __init__(self, seconds: float | None, *, hint: str = RESUMES) -> None:
        self._hint = hint
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._signal: int | None = None
        self._before: dict[int, Any] = {}

    def __call__(self) -> Stopped | None:
        if self._signal is not None:
            name = signal.Signals(self._signal).name
            return Stopped(f"Stopped by {name}.", self._hint, exit_code=128 + self._signal)
        if self._deadline is not None and time.monotonic() > self._deadline:
            code = 128 + signal.SIGTERM
            return Stopped("Stopped: --max-time is reached.", self._hint, exit_code=code, by_time=True)
        return None

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            os._exit(128 + number)
        self._signal = number


@contextlib.contextmanager
def running(quiet: bool, *, seconds: float | None = None, hint: str = "Nothing was written.") -> Iterator[Session]:
    """Yield a session that shows progress, and that a signal or the end of `seconds` stops.

    `hint` says what a stop means.
    """
    watcher: Watcher = WarningsOnly() if quiet else TerminalWatcher()
    try:
        with StopRequest(seconds, hint=hint) as stop:
            yield Session(watcher, stop)
    finally:
        watcher.finish()
