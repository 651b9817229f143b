"""Terminal output: progress bars on a terminal, plain lines elsewhere, tables. Labels are never markup."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from noisesieve.core.errors import NoisesieveError, OutputError
from noisesieve.core.progress import NullWatcher
from noisesieve.core.text import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table
    from rich.text import Text

LINE_SECONDS = 2.0  # between two lines of progress where there is no terminal


def say_error(error: NoisesieveError) -> None:
    """Print an error: the problem, its cases if there are any (one line each), and the next step."""
    if not error.items:
        say(f"noisesieve: {error}")
        return
    for line in (f"noisesieve: {error.problem}", *(f"  {item}" for item in error.items), error.hint):
        say(line)


def console(*, stderr: bool) -> Console:
    """Return a console without markup. rich itself handles NO_COLOR and dumb terminals."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:  # rich would exit with 1, which means that a gate failed
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 100
    return PipeConsole(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=False, width=width)


def plain_table() -> Table:
    """Return a table without rules, as all tables of the command line."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def plain_text(text: str, style: str = "") -> Text:
    """Return text that is never markup and has no control characters."""
    from rich.text import Text

    return Text(printable(text), style=style)


def print_line(text: object) -> None:
    """Print a line on stdout."""
    print(printable(str(text)))


def print_json(document: Any) -> None:
    """Print a document on stdout: a JSON value, or a record."""
    document = asdict(document) if is_dataclass(document) and not isinstance(document, type) else document
    print(printable_json(document))


@contextlib.contextmanager
def results() -> Iterator[None]:
    """Print results inside this block: a reader that closes the pipe is no error, a full disk is one."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the buffer would fail again at exit
        raise OutputError(
            f"Standard output cannot be written: {error.strerror}.",
            "The work itself is done.",
        ) from error


def say(text: str) -> None:
    """Print a line on stderr. If that fails, the work continues."""
    with contextlib.suppress(OSError):
        print(printable(text), file=sys.stderr, flush=True)


def say_command(text: str) -> None:
    """Print a command to GitHub on stderr, as it is. Text of the dataset in it must be escaped."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class WarningsOnly(NullWatcher):
    """For -q: prints warnings only."""

    def warn(self, text: str) -> None:
        say(text)


class TerminalWatcher:
    """Shows a progress bar on a terminal; elsewhere a line for every phase, and for epochs a few seconds apart."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._name = ""
        self._started = 0.0
        self._done = 0
        self._epoch = 0
        self._phase: str | None = None  # of the last line
        self._said = 0.0  # time of the last line

    def note(self, text: str) -> None:
        self._print(text, "dim")

    def warn(self, text: str) -> None:
        self._print(text, "yellow")

    def stage(self, name: str, total: int) -> None:
        self.finish()
        self._name, self._started, self._done, self._epoch = name, time.monotonic(), 0, 0
        self._phase = None
        if self._live:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=18),
                TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(compact=True),
                console=self._console,
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task(name, total=total, facts="")

    def advance(self, done: int = 1, **facts: Any) -> None:
        self._done += 0 if facts.pop("resumed", False) else done  # of this process: what a rate counts
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=done, facts=self._facts(facts), total=facts.get("total"))
        elif not self._live and facts.get("epoch", 0) != self._epoch:
            self._epoch, now = facts["epoch"], time.monotonic()
            if facts.get("phase") != self._phase or now - self._said >= LINE_SECONDS:
                self._phase, self._said = facts.get("phase"), now
                self._print(self._facts(facts), "")

    def finish(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None

    def _facts(self, facts: dict[str, Any]) -> str:
        rate = self._done / max(1e-9, time.monotonic() - self._started)
        if "epoch" not in facts:
            return f"{rate:,.0f}/s"
        if "loss" in facts:
            return f"{facts['phase']} {facts['epoch']}/{facts['epochs']} loss {facts['loss']:.3f} {rate:,.0f}/s"
        return (
            f"{facts['phase']} {facts['epoch']}/{facts['epochs']} β {facts['beta']:.1f} "
            f"kept {facts['kept']:,} dropped {facts['dropped']:,} {rate:,.0f}/s"
        )

    def _print(self, text: str, style: str) -> None:
        from rich.text import Text

        with contextlib.suppress(OSError):  # an unwritable stderr must not end the run
            self._console.print(Text(printable(text), style=style), soft_wrap=True)
