"""run.json, and the states of a run folder: new, unfinished, finished, or of another run."""

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

from noisesieve.core.errors import OutputError, StateError
from noisesieve.core.files import Json, atomic_write, digest, sha256_of, write_json
from noisesieve.core.progress import Session
from noisesieve.core.records import FileFacts, Index
from noisesieve.core.summary import SCHEMA_VERSION

FILES = (
    "report.parquet",
    "probabilities.parquet",
    "summary.json",
    "history.parquet",
    "margin_history.parquet",
    "division.parquet",
    "model.safetensors",
    "model.json",
    "retrain.json",
)
SHOWN = 5  # differences that are named


def fingerprint(index: Index, file_facts: FileFacts) -> str:
    """Return one hash of the dataset: ids, paths, labels, contents and every carried column, in order."""
    hasher = hashlib.sha256()
    for column in (index.ids, index.paths, index.labels, file_facts.sha256, index.splits):
        hasher.update(json.dumps(column).encode())
    if index.trusted is not None:
        hasher.update(index.trusted.tobytes())
    if index.carried is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, index.carried.schema) as stream:
            stream.write_table(index.carried.combine_chunks())
        hasher.update(sink.getvalue())
    return hasher.hexdigest()


def output_folder(wanted: Path | None, index: Index, session: Session) -> Path:
    """Return the run folder. It is never inside an image folder, whose sub-folders are classes."""
    folder = wanted or Path("noisesieve-runs") / index.name
    if index.kind != "folder" or not folder.resolve().is_relative_to(index.root.resolve()):
        return folder
    if wanted is not None:
        raise OutputError(f"{folder}: is inside the dataset.", "Choose a folder outside with -o.")
    folder = index.root.resolve().parent / "noisesieve-runs" / index.name
    session.note(f"The working folder is the dataset itself: the run is written to {folder}.")
    return folder


class RunFolder:
    """One run on disk. run.json says `complete` only after every other file was written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoint"
        self._json = folder / "run.json"

    def read(self) -> Json | None:
        """Return run.json, with its hash checked, or None if there is no run yet."""
        if not self._json.exists():
            return None
        try:
            document: Json = json.loads(self._json.read_text(encoding="utf-8"))
            mark = document.pop("digest")
        except (ValueError, KeyError, OSError, TypeError, AttributeError, RecursionError) as error:
            raise StateError(f"{self._json}: damaged.", "Scan again with --force.") from error
        if digest(document) != mark:
            raise StateError(f"{self._json}: changed since it was written.", "Scan again with --force.")
        if document["schema_version"] > SCHEMA_VERSION:
            raise StateError(
                f"{self._json}: schema version {document['schema_version']}; "
                f"this noisesieve reads up to {SCHEMA_VERSION}.",
                "Upgrade noisesieve.",
            )
        return document

    def find_state(self, identity: Json, index: Index, file_facts: FileFacts, *, force: bool) -> str:
        """Return "finished", "resume" or "fresh": what this folder has of the run. Another run's folder is refused.

        Nothing is written or removed here, since a later step may still be refused. With `force` another run, a
        finished or a damaged one is replaced; an unfinished one of the same identity is still resumed.
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
            self._refuse_other_files()
            return "fresh"
        if known["identity"] != identity:
            raise StateError(
                f"{self.folder}: contains a run with {self._differences(known, identity, index, file_facts)}.",
                "Choose another folder with -o, or replace that run with --force.",
            )
        self._verify(known)
        return "finished"

    def version(self) -> str:
        """Return the version of noisesieve that made this run."""
        return str((self.read() or {}).get("version", "unknown"))

    def begin(self, identity: Json, index: Index, file_facts: FileFacts, *, fresh: bool, **facts: Any) -> None:
        """Write run.json of an unfinished run: from now on the same command resumes it."""
        if fresh:
            for old in self.checkpoints.rglob("*.ckpt"):
                old.unlink(missing_ok=True)
        self._write_rows(index, file_facts)
        self.write(identity, complete=False, **facts)

    def write(self, identity: Json, *, complete: bool, **facts: Any) -> None:
        """Write run.json; a complete one lists the hash of every file."""
        files = {name: sha256_of(self.folder / name) for name in FILES if (self.folder / name).exists()}
        document = {
            "schema_version": SCHEMA_VERSION,
            "complete": complete,
            "identity": identity,
            "files": files if complete else {},
            **facts,
        }
        write_json(self._json, _with_digest(document))
        if complete:
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def replace(self, files: dict[str, Callable[[Path], None]]) -> None:
        """Replace files of a finished run. If it is interrupted, run.json accepts the old and the new files."""
        document = self.read()
        assert document is not None
        new = {name: self.folder / f".{name}.new" for name in files}
        try:
            for name, write in files.items():
                write(new[name])
            marks = {name: sha256_of(path) for name, path in new.items()}
            write_json(self._json, _with_digest({**document, "pending": marks}))
            for name, path in new.items():
                path.replace(self.folder / name)
        finally:
            for path in new.values():
                path.unlink(missing_ok=True)
        document.pop("pending", None)
        write_json(self._json, _with_digest({**document, "files": {**document["files"], **marks}}))

    def require_free_space(self, need: int) -> None:
        """Refuse a disk with too little free space, before hours of training."""
        free = shutil.disk_usage(self.folder).free
        if free < need:
            raise OutputError(
                f"{self.folder}: {free / 2**20:.0f} MiB free, and the run needs about {need / 2**20:.0f}.",
                "Free some space, or choose another folder with -o.",
            )

    def _refuse_other_files(self) -> None:
        found = [name for name in FILES if (self.folder / name).exists()]
        if found and not self.checkpoints.exists():
            raise OutputError(
                f"{self.folder}: contains {found[0]} but no run.json.",
                "Choose another folder with -o, or pass --force.",
            )

    def _verify(self, known: Json) -> None:
        for name, mark in known["files"].items():
            file = self.folder / name
            if not file.exists() or sha256_of(file) not in (mark, known.get("pending", {}).get(name)):
                raise StateError(
                    f"{file}: {'changed since the run' if file.exists() else 'missing'}.", "Scan again with --force."
                )

    def _write_rows(self, index: Index, file_facts: FileFacts) -> None:
        """Write ids, labels and hashes of the dataset, so that a later change can be named."""
        table = pa.table({"id": index.ids, "label": index.labels, "sha256": pa.array(file_facts.sha256, pa.string())})
        with atomic_write(self.checkpoints / "rows.parquet") as file:
            pq.write_table(table, file, compression="zstd")

    def _differences(self, known: Json, identity: Json, index: Index, file_facts: FileFacts) -> str:
        before, now = dict(_flat(known["identity"])), dict(_flat(identity))
        settings = [
            f"{name.rpartition('.')[2]} {before.get(name)} (now {now.get(name)})"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name) and name != "fingerprint"
        ]
        found = ["other settings: " + ", ".join(settings[:SHOWN])] if settings else []
        if before.get("fingerprint") != now.get("fingerprint"):
            found.append("other data: " + self._data_differences(index, file_facts))
        return "; ".join(found)

    def _data_differences(self, index: Index, file_facts: FileFacts) -> str:
        old = None
        for file in (self.folder / "report.parquet", self.checkpoints / "rows.parquet"):
            with contextlib.suppress(OSError, pa.ArrowException):  # missing or damaged: then without details
                old = old or pq.read_table(file, columns=["id", "label", "sha256"]).to_pydict()
        if old is None:
            return "the dataset changed"
        before = dict(zip(old["id"], zip(old["label"], old["sha256"], strict=True), strict=True))
        now = dict(zip(index.ids, zip(index.labels, file_facts.sha256, strict=True), strict=True))
        changes = [f"{name} is new" for name in now if name not in before]
        changes += [f"{name} is missing" for name in before if name not in now]
        for name, (label, sha256) in now.items():
            if name in before and before[name] != (label, sha256):
                what = f"label {before[name][0]!r} → {label!r}" if before[name][0] != label else "content changed"
                changes.append(f"{name}: {what}")
        more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        return ", ".join(changes[:SHOWN]) + more if changes else "the order of the rows changed"


def _with_digest(document: Json) -> Json:
    return {**document, "digest": digest(document)}


def _flat(document: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
