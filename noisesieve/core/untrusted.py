"""Files that a stranger may have made: only regular files are read, and nothing is written or deleted through a link.

A dataset, a run folder or a cache may come from somebody else. A FIFO in the place of a file would make a reader wait
for ever, and a link in the place of a file or folder of ours would make a writer change somebody's other files.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import hmac
import io
import json
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from noisesieve.core.errors import OutputError

MOST_JSON = 2**28  # bytes of a JSON document of ours
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_SECRET_BYTES = 32


def open_regular(path: str | Path, *, follow: bool = True) -> io.BufferedReader:
    """Open a regular file for reading. Anything else, such as a FIFO or a device, raises OSError at once."""
    handle = os.open(path, os.O_RDONLY | _NO_WAIT | (0 if follow else NO_FOLLOW))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return open(handle, "rb")


def read_regular(path: str | Path, *, most: int = MOST_JSON) -> bytes:
    """Return the bytes of a regular file. One of more than `most` bytes raises OSError."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise OSError(errno.EFBIG, f"{size:,} bytes, more than {most:,}", os.fspath(path))
        return file.read(size)  # memory is asked for what is there, not for what would be allowed


def read_json(path: Path) -> Any:
    """Return a JSON document. Raises OSError, ValueError, or RecursionError if it is nested too deeply."""
    return json.loads(read_regular(path).decode())


def require_regular(path: Path) -> None:
    """Raise OSError for anything but a regular file, before a library opens it by its name."""
    open_regular(path).close()


def open_own(path: Path, flags: int) -> int:
    """Open a file of ours for writing, without following a link; a new one can be read by its owner alone."""
    return os.open(path, flags | os.O_CREAT | NO_FOLLOW | _NO_WAIT, 0o600)


def refuse_link(path: Path, hint: str = "Remove it, or choose another folder with -o.") -> None:
    """Refuse to write to a link, or below one."""
    if path.is_symlink():
        raise OutputError(f"{path}: is a link, and noisesieve does not write through links.", hint)


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder in which one of these names is a link, or a folder with links below it."""
    refuse_link(folder)
    for name in names:
        path = folder / name
        refuse_link(path)
        if path.is_dir():
            for inner, folders, files in os.walk(path):
                for entry in (*folders, *files):
                    refuse_link(Path(inner, entry))


def is_own(path: Path) -> bool:
    """Return True for a file or folder of this user that is no link."""
    facts = path.lstat()
    return not stat.S_ISLNK(facts.st_mode) and (not hasattr(os, "geteuid") or facts.st_uid == os.geteuid())


def is_private(path: Path) -> bool:
    """Return True for a file or folder of this user that is no link, and that nobody else can write to."""
    return is_own(path) and not path.lstat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@functools.cache
def user_secret(folder: Path) -> bytes | None:
    """Return a random key that this user keeps in a folder of their own; None if it cannot be kept."""
    file = folder / "secret"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = _read_secret(file)
        if known is None:
            fresh = folder / f".secret.{secrets.token_hex(4)}.tmp"
            with os.fdopen(open_own(fresh, os.O_WRONLY | os.O_EXCL), "wb") as out:
                out.write(secrets.token_bytes(_SECRET_BYTES))
            try:
                os.link(fresh, file)  # the first of several processes wins
            except OSError:
                if _read_secret(file) is None:
                    fresh.replace(file)  # a damaged one is there, or the disk has no hard links
            finally:
                fresh.unlink(missing_ok=True)
            known = _read_secret(file)
    except OSError:
        return None
    return known


def _read_secret(file: Path) -> bytes | None:
    try:
        with open_regular(file, follow=False) as opened:
            key = opened.read(_SECRET_BYTES + 1)
        return key if len(key) == _SECRET_BYTES and is_private(file) else None
    except OSError:
        return None


def seal(*parts: bytes | memoryview) -> str | None:
    """Return a signature that only this user can make: what has it was written here, and not changed since.

    None where this user has no folder to keep a key in.
    """
    from platformdirs import user_cache_path

    if (key := user_secret(user_cache_path("noisesieve"))) is None:
        return None
    signature = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        signature.update(part)
    return signature.hexdigest()


def is_sealed(signature: object, *parts: bytes | memoryview) -> bool:
    """Return True if this user made the signature of this content."""
    own = seal(*parts)
    if own is None or not isinstance(signature, str):
        return False
    return hmac.compare_digest(own.encode(), signature.encode("utf-8", "backslashreplace"))
