"""Publish several files as one set: the old set stays until the new one is whole.

The new files are written to a hidden folder beside the first of them. Renaming that folder is the decision: before it
nothing has changed; after it the set is put in place by this process or, if that is killed, by the next one that writes
there. Readers only report such a set: it may be a stranger's. For the same reason a set is refused that this user did
not sign, that has links in it, or that lacks its main file, and only known names are moved.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from noisesieve.core.errors import StateError
from noisesieve.core.files import (
    MARK,
    cannot_be_written,
    hold_folder,
    marked_folder,
    put_in_place,
    remove_marked_folder,
    restore_and_sweep,
    sha256_of,
    sync_file,
    sync_folder,
)
from noisesieve.core.untrusted import is_sealed, read_json, seal

PLAN, OLD = "publish.json", ".noisesieve-old"


@contextlib.contextmanager
def stage(main: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside `main`, for the files that `publish` puts in place. It is removed at the end.

    An earlier set that was not put in place must have been finished: see `finish_publishing`.
    """
    restore_and_sweep(main)
    folder = main.with_name(f".{main.name}.{secrets.token_hex(4)}.tmp")
    try:
        with marked_folder(folder):
            yield folder
    except OSError as error:
        raise cannot_be_written(main, error) from error


def publish(staged: Path, main: Path, *, remove: Sequence[str] = ()) -> None:
    """Put every staged file beside `main`, which is one of them, and remove what belongs to the old set.

    Never are files of two sets side by side: the old ones but `main` go first, then `main` is replaced. An error on the
    way brings the old set back.
    """
    others = sorted(entry.name for entry in staged.iterdir() if entry.name not in (MARK, main.name))
    new = staged / main.name
    if new.is_dir():
        (new / MARK).write_text(f"made by noisesieve\n{secrets.token_hex(16)}\n")
    plan = {"mark": _mark(new), "others": others, "remove": [name for name in remove if name not in others]}
    (staged / OLD).mkdir()
    (staged / PLAN).write_text(json.dumps({**plan, "seal": seal(_content(plan, main))}))
    for name in (main.name, *others, PLAN):
        if (staged / name).is_file():
            sync_file(staged / name)
    sync_folder(staged)
    staged.replace(_decided(main))
    sync_folder(main.parent)
    _carry_out(main, {*others, *remove}, decided_here=True)


def finish_publishing(main: Path, known: Collection[str]) -> None:
    """Put a decided set in place, if a killed process left one: for the command that is about to write there.

    `known` are the names that may belong to the set beside `main`, so that a hostile dataset moves no other file.
    """
    if unfinished_publication(main) is not None:
        _carry_out(main, known, decided_here=False)


def unfinished_publication(main: Path) -> Path | None:
    """Return the folder of a set that was decided and not put in place, or None. For readers, who only report it."""
    try:
        return _decided(main) if main.name and os.path.lexists(_decided(main)) else None
    except OSError:  # a name that is too long
        return None


def _content(plan: dict[str, Any], main: Path) -> bytes:
    """Return what is signed of a plan: only its own user carries it out."""
    return json.dumps([main.name, plan["mark"], plan["others"], plan["remove"]]).encode()


def _carry_out(main: Path, known: Collection[str], *, decided_here: bool) -> None:
    """Put a set in place. `decided_here`: by this process, so that no signature is asked for."""
    folder = _decided(main)
    try:
        _refuse_links(folder, main)
        with hold_folder(folder):
            if not os.path.lexists(folder / PLAN):  # all is done but the removal of the folder
                if not (folder / MARK).is_file() and any(folder.iterdir()):
                    raise ValueError("it has no plan, and noisesieve did not make it")
                remove_marked_folder(folder)
                return
            files = _FileSet(folder, main, known, decided_here=decided_here)
            try:
                files.put_in_place()
            except OSError:
                with contextlib.suppress(OSError):  # if that fails, too, nothing is discarded: the next process goes on
                    files.undo()
                    files.discard()
                raise
            files.discard()
    except OSError as error:
        raise cannot_be_written(main, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(
            f"{folder}: an unfinished set of files that cannot be put in place ({error}).",
            f"Look at it, remove {folder}, and run the command again.",
        ) from error


def _refuse_links(folder: Path, main: Path) -> None:
    """Refuse a set with a link in the place of one of its own files, or of its main file."""
    for path in (folder, folder / OLD, folder / PLAN, folder / MARK, folder / main.name, main):
        if path.is_symlink():
            raise ValueError(f"{path.name} is a link")


class _FileSet:
    """A decided set of files. Every step can be repeated, and undone: the old files are kept until the end."""

    def __init__(self, folder: Path, main: Path, known: Collection[str], *, decided_here: bool) -> None:
        plan = read_json(folder / PLAN)
        if not decided_here and not is_sealed(plan.get("seal"), _content(plan, main)):
            raise ValueError("you did not begin it here")
        self._mark, self._others, self._remove = plan["mark"], list(plan["others"]), list(plan["remove"])
        if strange := {*self._others, *self._remove} - set(known):
            raise ValueError(f"{min(strange)!r} does not belong there")
        self._folder, self._main, self._old = folder, main, folder / OLD
        if not self._old.is_dir():
            raise ValueError(f"{OLD} is missing")
        for name in self._others:
            staged = folder / name
            if os.path.lexists(staged) and (staged.is_symlink() or not staged.is_file()):
                raise ValueError(f"{name} is not a file")
        if not (folder / main.name).exists() and _mark(main) != self._mark:
            raise ValueError(f"its main file, {main.name}, is missing")

    def put_in_place(self) -> None:
        """Move the old files away and the new ones to their place."""
        home, folder = self._main.parent, self._folder
        for name in (*self._remove, *(name for name in self._others if (folder / name).exists())):
            if os.path.lexists(home / name):
                (home / name).replace(self._old / name)
        if _mark(self._main) != self._mark:
            put_in_place(folder / self._main.name, self._main)
        for name in self._others:
            if (folder / name).exists():
                (folder / name).replace(home / name)
        sync_folder(home)

    def undo(self) -> None:
        """Bring the old files back."""
        home, folder = self._main.parent, self._folder
        for name in self._others:
            if not (folder / name).exists():
                (home / name).replace(folder / name)
        before = folder / self._main.name
        if _mark(self._main) == self._mark:
            put_in_place(before, self._main) if before.exists() else self._main.replace(before)
        for name in {*self._others, *self._remove}:
            if os.path.lexists(self._old / name):
                (self._old / name).replace(home / name)

    def discard(self) -> None:
        """Remove the folder: nothing is left to do."""
        (self._folder / PLAN).unlink()
        remove_marked_folder(self._folder)  # its mark last: a kill in between leaves a folder that is known as ours


def _mark(path: Path) -> str | None:
    """Return what a file or a folder of ours is recognised by, or None if there is nothing."""
    mark = path / MARK if path.is_dir() else path
    return sha256_of(mark) if mark.exists() else None


def _decided(main: Path) -> Path:
    """Return the folder of a set that is whole and only has to be put in place."""
    return main.with_name(f".{main.name}.publish")
