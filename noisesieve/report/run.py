"""run.json and the life of a run folder: begun, resumed, finished, or somebody else's."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.errors import OutputError, StateError
from noisesieve.files import digest, replacing, sha256_of, write_json
from noisesieve.records import Index, Looks
from noisesieve.report.schema import SCHEMA_VERSION
from noisesieve.watch import Watcher

FILES = (
    "report.parquet",
    "probabilities.parquet",
    "summary.json",
    "history.parquet",
    "course.parquet",
    "division.parquet",
    "model.safetensors",
    "model.json",
    "retrain.json",
)
SHOWN = 5  # differences that are named


def fingerprint(index: Index, looks: Looks) -> str:
    """The dataset in one hash: ids, paths, labels, contents and every carried column, in order."""
    hasher = hashlib.sha256()
    for column in (index.ids, index.paths, index.labels, looks.sha256, index.splits):
        hasher.update(json.dumps(column).encode())
    if index.trusted is not None:
        hasher.update(index.trusted.tobytes())
    if index.carried is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, index.carried.schema) as stream:
            stream.write_table(index.carried.combine_chunks())
        hasher.update(sink.getvalue())
    return hasher.hexdigest()


def output_folder(wanted: Path | None, index: Index, watcher: Watcher) -> Path:
    """Where the run goes: never into an image folder, whose folders are classes."""
    folder = wanted or Path("noisesieve-runs") / index.name
    if index.kind != "folder" or not folder.resolve().is_relative_to(index.root.resolve()):
        return folder
    if wanted is not None:
        raise OutputError(f"{folder}: lies inside the dataset.", "Choose a folder outside with -o.")
    folder = index.root.resolve().parent / "noisesieve-runs" / index.name
    watcher.note(f"The working folder is the dataset itself: the run goes to {folder}.")
    return folder


class RunFolder:
    """One run on disk. `run.json` says complete only when everything else is in place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoint"
        self._json = folder / "run.json"

    def read(self) -> dict[str, Any] | None:
        """run.json, its own hash checked, or None where there is no run yet."""
        if not self._json.exists():
            return None
        try:
            document: dict[str, Any] = json.loads(self._json.read_text(encoding="utf-8"))
            mark = document.pop("digest")
        except (ValueError, KeyError, OSError, TypeError, AttributeError, RecursionError) as error:
            raise StateError(f"{self._json}: damaged.", "Scan again with --force.") from error
        if digest(document) != mark:
            raise StateError(f"{self._json}: changed since it was written.", "Scan again with --force.")
        if document["schema_version"] > SCHEMA_VERSION:
            raise StateError(
                f"{self._json}: schema version {document['schema_version']}, this noisesieve knows {SCHEMA_VERSION}.",
                "Upgrade noisesieve.",
            )
        return document

    def claim(self, identity: dict[str, Any], index: Index, looks: Looks, *, force: bool) -> str:
        """What this folder is to this run: "finished", to "resume", or "fresh"; another run's is refused.

        Nothing is written or removed here: what comes next may still be refused. With `force` another run, a finished
        or a damaged one is replaced; an unfinished one of the same kind is still resumed.
        """
        try:
            known = self.read()
        except StateError:
            if force:
                return "fresh"
            raise
        if known is not None and known["identity"] == identity and not known["complete"]:
            return "resume"
        if force:
            return "fresh"
        if known is None:
            self._refuse_strangers()
            return "fresh"
        if known["identity"] != identity:
            raise StateError(
                f"{self.folder}: holds a run with {self._differences(known, identity, index, looks)}.",
                "Choose another folder with -o, or replace that run with --force.",
            )
        self._verify(known)
        return "finished"

    def begin(self, identity: dict[str, Any], index: Index, looks: Looks, *, fresh: bool, **facts: Any) -> None:
        """Make the folder this run's: from now on the same command resumes it."""
        if fresh:
            for old in self.checkpoints.rglob("*.ckpt"):
                old.unlink(missing_ok=True)
        self._write_rows(index, looks)
        self.write(identity, complete=False, **facts)

    def write(self, identity: dict[str, Any], *, complete: bool, **facts: Any) -> None:
        """Write run.json; a complete one lists the hash of every file."""
        files = {name: sha256_of(self.folder / name) for name in FILES if (self.folder / name).exists()}
        document = {
            "schema_version": SCHEMA_VERSION,
            "complete": complete,
            "identity": identity,
            "files": files if complete else {},
            **facts,
        }
        write_json(self._json, _signed(document))
        if complete:
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def replace(self, files: dict[str, Callable[[Path], None]]) -> None:
        """Write some files of a finished run anew. Whenever this ends, the run is whole: run.json knows old and new."""
        document = self.read()
        assert document is not None
        fresh = {name: self.folder / f".{name}.new" for name in files}
        try:
            for name, write in files.items():
                write(fresh[name])
            marks = {name: sha256_of(place) for name, place in fresh.items()}
            write_json(self._json, _signed({**document, "pending": marks}))
            for name, place in fresh.items():
                place.replace(self.folder / name)
        finally:
            for place in fresh.values():
                place.unlink(missing_ok=True)
        document.pop("pending", None)
        write_json(self._json, _signed({**document, "files": {**document["files"], **marks}}))

    def require_room(self, need: int) -> None:
        """Refuse a disk that cannot hold the run before hours of training, not after."""
        free = shutil.disk_usage(self.folder).free
        if free < need:
            raise OutputError(
                f"{self.folder}: {free / 2**20:.0f} MiB free, and the run needs about {need / 2**20:.0f}.",
                "Free some space, or choose another place with -o.",
            )

    def _refuse_strangers(self) -> None:
        found = [name for name in FILES if (self.folder / name).exists()]
        if found and not self.checkpoints.exists():
            raise OutputError(
                f"{self.folder}: holds {found[0]} but no run.json.", "Choose another folder with -o, or pass --force."
            )

    def _verify(self, known: dict[str, Any]) -> None:
        for name, mark in known["files"].items():
            file = self.folder / name
            if not file.exists() or sha256_of(file) not in (mark, known.get("pending", {}).get(name)):
                raise StateError(
                    f"{file}: {'changed since the run' if file.exists() else 'gone'}.", "Scan again with --force."
                )

    def _write_rows(self, index: Index, looks: Looks) -> None:
        """What the dataset was when the run began, so that a change can be named."""
        table = pa.table({"id": index.ids, "label": index.labels, "sha256": pa.array(looks.sha256, pa.string())})
        with replacing(self.checkpoints / "rows.parquet") as file:
            pq.write_table(table, file, compression="zstd")

    def _differences(self, known: dict[str, Any], identity: dict[str, Any], index: Index, looks: Looks) -> str:
        before, now = dict(_flat(known["identity"])), dict(_flat(identity))
        settings = [
            f"{name.rpartition('.')[2]} {before.get(name)} (now {now.get(name)})"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name) and name != "fingerprint"
        ]
        found = ["other settings: " + ", ".join(settings[:SHOWN])] if settings else []
        if before.get("fingerprint") != now.get("fingerprint"):
            found.append("other data: " + self._data_differences(index, looks))
        return "; ".join(found)

    def _data_differences(self, index: Index, looks: Looks) -> str:
        old = None
        for file in (self.folder / "report.parquet", self.checkpoints / "rows.parquet"):
            with contextlib.suppress(OSError, pa.ArrowException):  # gone or damaged: then without details
                old = old or pq.read_table(file, columns=["id", "label", "sha256"]).to_pydict()
        if old is None:
            return "the dataset changed"
        before = dict(zip(old["id"], zip(old["label"], old["sha256"], strict=True), strict=True))
        now = dict(zip(index.ids, zip(index.labels, looks.sha256, strict=True), strict=True))
        changes = [f"{name} is new" for name in now if name not in before]
        changes += [f"{name} is gone" for name in before if name not in now]
        for name, (label, sha256) in now.items():
            if name in before and before[name] != (label, sha256):
                what = f"label {before[name][0]!r} → {label!r}" if before[name][0] != label else "content changed"
                changes.append(f"{name}: {what}")
        more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        return ", ".join(changes[:SHOWN]) + more if changes else "the rows' order changed"


def _signed(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "digest": digest(document)}


def _flat(document: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
