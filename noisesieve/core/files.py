"""Atomic file writes, and hashes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from noisesieve.core.errors import OutputError
from noisesieve.core.untrusted import NO_FOLLOW, is_own, open_regular, refuse_link

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Json = dict[str, Any]  # a JSON object that was read, or whose content is open
Document = dict[str, object]  # a JSON object to be written; a schema in report/schemas describes it
LEFTOVER = re.compile(r"\..+\.[0-9a-f]{8}\.(tmp|old)", re.DOTALL)  # names of temporary files and folders
MARK = ".noisesieve"  # marks a folder that noisesieve created and may replace


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary binary file that replaces `path` when the block succeeds; on an error `path` is unchanged."""
    if not path.name or path.is_dir():
        raise OutputError(f"{path}: is a folder.", "Choose the name of a file.")
    restore_and_sweep(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                _hold(file)
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        sync_folder(path.parent)
    except OSError as error:
        raise cannot_be_written(path, error) from error


def cannot_be_written(path: Path, error: OSError) -> OutputError:
    """Return the error for a file or folder that the system does not let us write."""
    return OutputError(
        f"{path}: cannot be written: {error.strerror or error}.", "Free some space, or choose another path with -o."
    )


@contextlib.contextmanager
def atomic_output(path: Path, *, folder: bool, force: bool) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` when the block succeeds.

    For a file it is `path` itself, since its writer replaces it atomically. For a folder it is a temporary folder that
    is renamed at the end. An existing folder is replaced only if noisesieve created it.
    """
    if not folder:
        if path.is_dir():
            raise OutputError(f"{path}: is a folder.", "Choose the name of a file with -o.")
        if path.exists() and not force:
            raise OutputError(f"{path}: exists already.", "Choose another name with -o, or pass --force.")
        yield path
        return
    refuse_link(path)
    restore_and_sweep(path)
    refuse_existing_folder(path, force=force)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with marked_folder(temporary):
            yield temporary
            put_in_place(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise cannot_be_written(path, error) from error


def refuse_existing_folder(path: Path, *, force: bool) -> None:
    """Refuse to write a folder over anything but an empty folder or, with `force`, one that noisesieve created."""
    if path.exists() and not (path.is_dir() and (not any(path.iterdir()) or (force and (path / MARK).exists()))):
        ours = (path / MARK).exists()
        hint = "Pass --force to replace it." if ours else "noisesieve did not create it: choose another with -o."
        raise OutputError(f"{path}: exists already.", hint)


def put_in_place(new: Path, path: Path) -> None:
    """Rename a file or folder to `path`. An old one there changes places with it, in one step where the system can."""
    if not path.exists():
        new.replace(path)
        return
    if _exchange(new, path):
        return
    old = new.with_suffix(".old")
    if path.is_dir():
        path.replace(old)
    else:
        shutil.copyfile(path, old)
    try:
        new.replace(path)
        old.replace(new)
    except OSError:
        if not new.exists():
            path.replace(new)
        old.replace(path)
        raise


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths change places in one step (renameat2 of Linux). Returns False where that is not supported."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    here = -100  # AT_FDCWD
    return call is not None and call(here, os.fsencode(one), here, os.fsencode(other), 2) == 0


@contextlib.contextmanager
def marked_folder(folder: Path) -> Iterator[None]:
    """Make a temporary folder that later commands recognise as ours, and as in use. It is removed at the end."""
    folder.mkdir(parents=True)
    try:
        with (folder / MARK).open("x") as mark:
            mark.write("made by noisesieve\n")
            mark.flush()
            _hold(mark)
            yield
    finally:
        remove_marked_folder(folder)


def _remove(left: Path) -> None:
    if left.is_dir():
        remove_marked_folder(left)
    else:
        left.unlink(missing_ok=True)


def remove_marked_folder(folder: Path) -> None:
    """Remove a folder of ours, its mark last, so that it is still recognised if this is interrupted.

    Links in it are removed, never followed.
    """
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != MARK:
                entry.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _is_ours(left: Path) -> bool:
    """Return True for a temporary file, a folder with our mark, or an empty one, whose process was killed before.

    Never for a link, or for what belongs to another user: these are left alone.
    """
    if not LEFTOVER.fullmatch(left.name) or not is_own(left):
        return False
    return left.is_file() or (left / MARK).is_file() or not any(left.iterdir())


def restore_and_sweep(path: Path) -> None:
    """Undo what a kill left beside `path`: put back an old folder that was being replaced, remove unfinished things."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with contextlib.suppress(OSError):
            if not _is_ours(left):
                continue
            if left.suffix == ".old" and not os.path.lexists(path):
                left.replace(path)
            elif _is_abandoned(left / MARK if left.is_dir() else left):
                _remove(left)


def _hold(file: IO[Any]) -> None:
    """Lock a temporary file while it is open, so that others see that its process lives. Unix only."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Wait for the lock on a folder, and hold it; no lock file stays behind. Unix only; a missing folder has none."""
    handle = None
    with contextlib.suppress(FileNotFoundError):
        handle = None if fcntl is None else os.open(folder, os.O_RDONLY | NO_FOLLOW)
    if handle is None:
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _is_abandoned(file: Path) -> bool:
    """Return True if nobody holds a temporary file any more."""
    if not os.path.lexists(file):
        return True
    try:
        with open_regular(file, follow=False) as opened:
            if fcntl is None:
                return False
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        return False


def sweep_temporaries(folder: Path) -> None:
    """Remove what a killed process was writing in a folder. Nobody else may be writing there."""
    for left in folder.glob(".*.tmp"):
        if _is_ours(left):
            _remove(left)


def sync_file(path: Path) -> None:
    """Flush a file's content to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush renames inside a folder to the disk, where the system supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document atomically. Keys keep their order; NaN is refused."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with atomic_write(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as hex. Anything but a regular file raises OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_weights(path: Path) -> str:
    """Return the SHA-256 of a large file that is asked for several times: hashed again only if it was written to."""
    facts = path.stat()
    return _sha256_by_facts(path, facts.st_size, facts.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _sha256_by_facts(path: Path, size: int, modified: int) -> str:
    return sha256_of(path)


def digest(document: Any) -> str:
    """Return the SHA-256 of a JSON document. The order of its keys does not matter."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
