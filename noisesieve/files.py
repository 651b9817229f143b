"""Files that appear whole or not at all, hashes, and the lock of a run folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from noisesieve.errors import OutputError

MARK = ".noisesieve"  # in a folder that we made, and may replace


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block ends well, synced; else nothing changes."""
    if not path.name or path.is_dir():
        raise OutputError(f"{path}: is a folder.", "Choose the name of a file.")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        sync_folder(path.parent)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror or error}.",
            "Free some space, or choose another place with -o.",
        ) from error


@contextlib.contextmanager
def filling(path: Path, *, folder: bool, force: bool) -> Iterator[Path]:
    """A place to fill that becomes `path` when the block ends well. Only what is ours is ever replaced.

    A file is handed out as it is, since its writer replaces it whole; a folder is filled beside its place.
    """
    if not folder:
        if path.is_dir():
            raise OutputError(f"{path}: is a folder.", "Choose the name of a file with -o.")
        if path.exists() and not force:
            raise OutputError(f"{path}: is there already.", "Choose another name with -o, or pass --force.")
        yield path
        return
    if path.exists() and not (path.is_dir() and (not any(path.iterdir()) or (force and (path / MARK).exists()))):
        hint = "Pass --force to replace it." if (path / MARK).exists() else "It is not ours to replace: choose another."
        raise OutputError(f"{path}: is there already.", hint)
    token = secrets.token_hex(4)
    place, old = path.with_name(f".{path.name}.{token}.tmp"), path.with_name(f".{path.name}.{token}.old")
    try:
        place.mkdir(parents=True)
        (place / MARK).write_text("made by noisesieve\n")
        yield place
        if path.exists():
            path.replace(old)
        try:
            place.replace(path)
        except OSError:
            if old.exists():
                old.replace(path)  # what was there is there again
            raise
        shutil.rmtree(old, ignore_errors=True)
        sync_folder(path.parent)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror or error}.",
            "Free some space, or choose another place with -o.",
        ) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def sync_file(path: Path) -> None:
    """Bring a file's content to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder survive a power cut, where the system allows it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document, keys in the order given, NaN refused."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(document: Any) -> str:
    """SHA-256 of a JSON document, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder. A second process is refused and told the pid; the lock dies with its process."""
    owner = folder / ".lock.pid"
    lock = FileLock(folder / ".lock", blocking=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        owner.write_text(str(os.getpid()))
    except Timeout:
        pid = owner.read_text() if owner.exists() else "unknown"
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
            owner.unlink()
        lock.release()
        _tidy(folder)


def _tidy(folder: Path) -> None:
    """Remove a folder that holds nothing but its lock: a refused run leaves nothing behind."""
    with contextlib.suppress(OSError):
        if {entry.name for entry in folder.iterdir()} <= {".lock"}:
            (folder / ".lock").unlink(missing_ok=True)
            folder.rmdir()
            folder.parent.rmdir()  # `noisesieve-runs`, where it is empty too
