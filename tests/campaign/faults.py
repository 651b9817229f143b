"""Run a command in a forked process that is killed, or gets an error, at the n-th operation on a file.

Counted are opening, writing, syncing, renaming, removing and making, of files below one folder, in the command's own
process. Forking saves the seconds of importing torch: a disturbed scan of a few images takes about a second.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noisesieve.cli import main
from noisesieve.core import files

EVENTS = {
    "open": "open",
    "os.rename": "rename",
    "os.remove": "remove",
    "os.mkdir": "mkdir",
    "os.rmdir": "rmdir",
    "os.link": "link",
    "os.symlink": "link",
}
FAILING = frozenset(("open", "write", "fsync", "rename"))  # operations that can get an error
_real_open = io.open


@dataclass
class Fault:
    """What happens at which operation. `kind`: count, kill, or the name of an error."""

    root: str
    kind: str = "count"
    at: int = 0
    lasting: bool = False  # every later operation fails, too, as on a full disk
    counts: Counter[str] = field(default_factory=Counter)  # operations at which each kind could happen

    def meet(self, operation: str, path: object, *, writes: bool = True) -> None:
        """Count an operation, and do what is due."""
        if not isinstance(path, str | bytes | os.PathLike) or not os.path.abspath(os.fsdecode(path)).startswith(
            self.root
        ):
            return
        possible = {"kill": True, "EIO": operation in FAILING, "ENOSPC": operation in FAILING and writes}
        self.counts.update(kind for kind, can in possible.items() if can)
        if not possible.get(self.kind, False):
            return
        if self.counts[self.kind] != self.at and not (self.lasting and self.counts[self.kind] > self.at > 0):
            return
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        code = getattr(errno, self.kind)
        raise OSError(code, os.strerror(code), os.fsdecode(path))


def install(fault: Fault) -> None:
    """Watch the file operations of this process."""

    def audit(event: str, details: tuple[Any, ...]) -> None:
        if event in EVENTS and details:
            flags = details[2] if event == "open" and len(details) > 2 and isinstance(details[2], int) else os.O_WRONLY
            fault.meet(EVENTS[event], details[0], writes=bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)))

    class Raw(io.FileIO):
        def write(self, data: Any) -> int:
            fault.meet(
                "write", self.name if not isinstance(self.name, int) else os.readlink(f"/proc/self/fd/{self.name}")
            )
            return super().write(data)

    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not set(mode) & set("wax+"):
            return _real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline)

    real_fsync, real_exchange = os.fsync, files._exchange

    def fsync(handle: int) -> None:
        fault.meet("fsync", os.readlink(f"/proc/self/fd/{handle}"))
        real_fsync(handle)

    def exchange(one: Path, other: Path) -> bool:
        fault.meet("rename", one)
        return real_exchange(one, other)

    io.open = builtins.open = opened  # type: ignore[assignment]
    os.fsync, files._exchange = fsync, exchange
    sys.addaudithook(audit)


@dataclass(frozen=True)
class Ended:
    """How a command ended; `code` is negative for a signal."""

    code: int
    out: str
    err: str
    counts: dict[str, int]

    @property
    def is_clumsy(self) -> bool:
        """True for a traceback, or an error that noisesieve did not expect."""
        return "Traceback" in self.err or "unexpected" in self.err or self.code == 70


def run(words: list[str], home: Path, fault: Fault | None = None) -> Ended:
    """Run `noisesieve WORDS` in a child, with `home` as its working folder."""
    out, err, counted = (home.parent / f"{home.name}.{name}" for name in ("out", "err", "count"))
    counted.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _be_command(words, home, fault, out, err, counted)
    _, status = os.waitpid(child, 0)
    counts = json.loads(counted.read_text()) if counted.exists() else {}
    return Ended(os.waitstatus_to_exitcode(status), out.read_text(), err.read_text(), counts)


def _be_command(words: list[str], home: Path, fault: Fault | None, out: Path, err: Path, counted: Path) -> None:
    code: object = 71
    try:
        os.chdir(home)
        for number, file in ((1, out), (2, err)):
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        sys.argv = ["noisesieve", *words]
        if fault is not None:
            install(fault)
        try:
            main()
            code = 0
        except SystemExit as left:
            code = left.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if fault is not None:
            fault.at, fault.lasting = 0, False
            counted.write_text(json.dumps(fault.counts))
        os._exit(code if isinstance(code, int) else 71)
