"""The lock of a run folder: one process writes there at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from noisesieve.core.errors import OutputError
from noisesieve.core.untrusted import open_own, refuse_links


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder. A second process gets an error that names the pid; the lock ends with its process.

    Nothing is written through a link: one in the place of the folder or of our files is refused.
    """
    refuse_links(folder, (".lock", ".lock.pid"))
    pid_file = folder / ".lock.pid"
    lock = FileLock(folder / ".lock", blocking=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        with os.fdopen(open_own(pid_file, os.O_WRONLY | os.O_TRUNC), "w") as file:
            file.write(str(os.getpid()))
    except Timeout:
        pid = pid_file.read_text(errors="replace")[:20] if pid_file.is_file() else "unknown"
        raise OutputError(
            f"{folder}: process {pid} is writing this run.", "Wait for it, or choose another folder with -o."
        ) from None
    except OSError as error:
        raise OutputError(
            f"{folder}: cannot be written: {error.strerror or error}.", "Choose another folder with -o."
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            pid_file.unlink()
        lock.release()
        _tidy(folder)


def _tidy(folder: Path) -> None:
    """Remove a folder that contains nothing but its lock, so that a refused run leaves no files."""
    with contextlib.suppress(OSError):
        if {entry.name for entry in folder.iterdir()} <= {".lock"}:
            (folder / ".lock").unlink(missing_ok=True)
            folder.rmdir()
            folder.parent.rmdir()  # `noisesieve-runs`, if it is empty too
