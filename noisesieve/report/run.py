"""run.json, and the states of a run folder: new, unfinished, finished, or of another run."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.core.columns import BLOCK, Column, Hashes
from noisesieve.core.documents import from_json
from noisesieve.core.errors import OutputError, StateError
from noisesieve.core.files import Document, Json, atomic_write, digest, sha256_of, sweep_temporaries, write_json
from noisesieve.core.publish import finish_publishing, publish, stage, unfinished_publication
from noisesieve.core.records import FileFacts, Index
from noisesieve.core.untrusted import is_sealed, read_json, refuse_links, seal
from noisesieve.report.differences import differences
from noisesieve.report.summary import SCHEMA_VERSION

Identity = Json  # what a run is recognised by: settings, data, recipe, device; differences are named key by key
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
EARLIER_KEYS = {"wishes": "training", "beside": "compared_heads"}  # of an identity of schema version 1
MAIN = "report.parquet"  # the first of the files that are published together
STALE = ("review.html", "curves.svg")  # files without a hash that belong to the run before
CHECKPOINTS = "[0-9]" * 8 + ".ckpt"
PUBLISHED = frozenset((*FILES, *STALE, "run.json", "checkpoint"))  # names of a set that is published


def fingerprint(index: Index, file_facts: FileFacts) -> str:
    """Return one hash of the dataset: ids, paths, labels, contents and every carried column, in order."""
    hasher = hashlib.sha256()
    for column in (index.column("ids"), index.column("paths"), index.column("labels"), file_facts.hashes):
        _add_json(hasher, column)
    if index.splits is None:
        hasher.update(b"null")
    else:
        _add_json(hasher, index.column("splits"))
    if index.trusted is not None:
        hasher.update(index.trusted.tobytes())
    if index.carried is not None:
        with pa.ipc.new_stream(pa.PythonFile(_Hashed(hasher), mode="w"), index.carried.schema) as stream:
            stream.write_table(index.carried.combine_chunks())
    return hasher.hexdigest()


def _add_json(hasher: hashlib._Hash, column: Column) -> None:
    """Add a column as `json.dumps` of its list would write it, block by block."""
    hasher.update(b"[")
    for number, block in enumerate(column.blocks()):
        hasher.update((", " if number else "").encode() + json.dumps(block)[1:-1].encode())
    hasher.update(b"]")


class _Hashed(io.RawIOBase):
    """A file whose bytes are only hashed."""

    def __init__(self, hasher: hashlib._Hash) -> None:
        super().__init__()
        self._hasher = hasher

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._hasher.update(data)
        return len(data)


def method_of(identity: Identity) -> int:
    """Return the number of the method that a run was decided by. Runs without one are of the first."""
    return int(identity.get("method", 1))


@dataclass(frozen=True)
class RunRecord:
    """run.json."""

    identity: Identity
    version: str  # of noisesieve
    recipe: Document | None = None  # of a scan
    location: dict[str, str] | None = None  # absolute paths of a scan's data: path, and root and weights if given
    complete: bool = False  # every file was written
    files: dict[str, str] = field(default_factory=dict)  # name → SHA-256, of a complete run
    schema_version: int = SCHEMA_VERSION
    own: bool = True  # this user wrote it on this machine: the paths in it can be trusted

    def to_document(self) -> Document:
        """Return run.json with a hash of itself and, if this user made the run, with a signature that says so."""
        parts = {name: value for name, value in vars(self).items() if name != "own"}
        document = {name: value for name, value in parts.items() if value not in (None, {}) or name == "files"}
        mark = digest(document)
        signature = seal(mark.encode()) if self.own else None
        return {**document, "digest": mark, **({} if signature is None else {"signature": signature})}

    @classmethod
    def from_document(cls, document: object) -> RunRecord:
        """Undo `to_document`. Raises ValueError for a document of another kind."""
        values = dict(from_json(dict[str, object], document))
        mark, signature = values.pop("digest", None), values.pop("signature", None)
        if digest(values) != mark:
            raise ValueError("its hash does not match")
        record = from_json(cls, values)
        identity = {EARLIER_KEYS.get(name, name): value for name, value in record.identity.items()}
        sealed = is_sealed(signature, str(mark).encode())
        return replace(record, identity=identity, schema_version=SCHEMA_VERSION, own=sealed)


class RunFolder:
    """One run on disk. run.json says `complete` only after every other file was written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoint"
        self._json = folder / "run.json"
        self._next = self.checkpoints / "run.json"  # of an unfinished run that will replace a finished one
        self._rows = self.checkpoints / "rows.parquet"  # ids, labels and hashes; it also marks the folder as ours

    def recover(self) -> None:
        """Finish or remove what a killed process left here. The folder must be locked."""
        refuse_links(self.folder, PUBLISHED)
        finish_publishing(self.folder / MAIN, PUBLISHED)
        refuse_links(self.folder, PUBLISHED)  # also among what was put in place
        sweep_temporaries(self.folder)

    def read(self) -> RunRecord | None:
        """Return run.json, with its hash checked, or None if there is no run yet."""
        return _read_record(self._json)

    def find_state(self, identity: Identity, index: Index, file_facts: FileFacts, *, force: bool) -> str:
        """Return "finished", "resume" or "fresh": what this folder has of the run. Another run's folder is refused.

        Nothing is written or removed here, since a later step may still be refused. With `force` another run, a
        finished or a damaged one is replaced; an unfinished one of the same identity is still resumed.
        """
        try:
            known = self.read()
        except StateError:
            if not force:
                raise
            known = None
        if known is not None and known.complete and known.identity == identity and not force:
            self._verify(known)
            return "finished"
        self._refuse_other_checkpoints()
        unfinished = self.unfinished()
        if unfinished is not None and unfinished.identity == identity:
            if unfinished.own:
                return "resume"
            if not force:
                raise StateError(
                    f"{self.folder}: contains an unfinished run that you did not begin here, or of an earlier version.",
                    "Start anew with --force, or choose another folder with -o.",
                )
        if force:
            return "fresh"
        if known is None:
            self._refuse_other_files()
            return "fresh"
        if method_of(known.identity) != method_of(identity):
            state = "a finished" if known.complete else "an unfinished"
            raise StateError(
                f"{self.folder}: contains {state} run of method {method_of(known.identity)}, by noisesieve "
                f"{known.version}. This noisesieve decides by method {method_of(identity)}: its verdicts differ.",
                "The run is kept, and other commands read it. Choose another folder with -o, or pass --force.",
            )
        reasons = differences(self.folder, known.identity, identity, index, file_facts)
        raise StateError(
            f"{self.folder}: contains a run with {reasons}.",
            "Choose another folder with -o, or replace that run with --force.",
        )

    def unfinished(self) -> RunRecord | None:
        """Return the record of the run that was begun here and not finished, or None."""
        for file in (self._next, self._json):
            with contextlib.suppress(StateError):  # damaged: then it cannot be resumed
                if (known := _read_record(file)) is not None and not known.complete:
                    return known
        return None

    def is_finished(self) -> bool:
        """Return True if there is a finished run here, of whatever settings."""
        try:
            known = self.read()
        except StateError:
            return False
        return known is not None and known.complete

    def version(self) -> str:
        """Return the version of noisesieve that made this run."""
        known = self.read()
        return "unknown" if known is None else known.version

    def begin(self, record: RunRecord, index: Index, file_facts: FileFacts, *, fresh: bool) -> None:
        """Write the record of an unfinished run: from now on the same command resumes it.

        A finished run in the same folder stays as it is, and readable, until the new one is whole.
        """
        if fresh:
            for old in self.checkpoints.rglob(CHECKPOINTS):
                old.unlink(missing_ok=True)
        self._write_rows(index, file_facts)
        finished = self.is_finished()
        if not finished:
            self._next.unlink(missing_ok=True)  # of another run that was to replace one that is gone
        write_json(self._next if finished else self._json, record.to_document())

    @contextlib.contextmanager
    def stage(self) -> Iterator[Path]:
        """Yield a folder to write the files of a new run to."""
        with stage(self.folder / MAIN) as folder:
            yield folder

    def complete(self, record: RunRecord, staged: Path) -> None:
        """Put the staged files in place, with run.json of a finished run, which has the hash of every file."""
        files = {name: sha256_of(staged / name) for name in FILES if (staged / name).exists()}
        write_json(staged / "run.json", replace(record, complete=True, files=files).to_document())
        publish(staged, self.folder / MAIN, remove=[*(set(FILES) - files.keys()), *STALE, self.checkpoints.name])

    def replace(self, files: dict[str, Callable[[Path], None]]) -> None:
        """Replace some files of a finished run, report.parquet among them. Its page does not fit them any more."""
        known = self.read()
        assert known is not None
        with self.stage() as staged:
            for name, write in files.items():
                write(staged / name)
            marks = {name: sha256_of(staged / name) for name in files}
            write_json(staged / "run.json", replace(known, files={**known.files, **marks}).to_document())
            publish(staged, self.folder / MAIN, remove=["review.html"])

    def require_free_space(self, need: int) -> None:
        """Refuse a disk with too little free space, before hours of training."""
        free = shutil.disk_usage(self.folder).free
        if free < need:
            raise OutputError(
                f"{self.folder}: {free / 2**20:.0f} MiB free, and the run needs about {need / 2**20:.0f}.",
                "Free some space, or choose another folder with -o.",
            )

    def _refuse_other_checkpoints(self) -> None:
        """Refuse a folder `checkpoint` that is not ours: it would be removed at the end of the run."""
        if self.checkpoints.is_dir() and any(self.checkpoints.iterdir()) and not self._rows.exists():
            raise OutputError(
                f"{self.checkpoints}: is not a folder of noisesieve.", "Move it away, or choose another folder with -o."
            )

    def _refuse_other_files(self) -> None:
        present = [name for name in FILES if (self.folder / name).exists()]
        if present and not self._rows.exists():
            raise OutputError(
                f"{self.folder}: contains {present[0]} but no run.json.",
                "Choose another folder with -o, or pass --force.",
            )

    def _verify(self, known: RunRecord) -> None:
        for name in known.files:
            verify_written(self.folder / name)

    def _write_rows(self, index: Index, file_facts: FileFacts) -> None:
        """Write ids, labels and hashes of the dataset, so that a later change can be named."""
        schema = pa.schema([("id", pa.string()), ("label", pa.string()), ("sha256", pa.string())])
        columns = index.column("ids").array, index.column("labels").array
        with atomic_write(self._rows) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for start in range(0, len(index), BLOCK):
                ids, labels = (column.slice(start, BLOCK).cast(pa.string()) for column in columns)
                hashes = Hashes(file_facts.hashes.array.slice(start, BLOCK)).to_arrow()
                writer.write_table(pa.table([ids, labels, hashes], schema=schema))


def verify_written(file: Path) -> None:
    """Refuse a file of a run folder that is not the one the run wrote, by its hash in run.json.

    A run that never finished, or whose files a killed process did not put in place, is refused, too.
    """
    folder = file.parent
    if (left := unfinished_publication(folder / MAIN)) is not None:
        raise StateError(
            f"{folder}: a command was stopped while it replaced the files of this run ({left.name}).",
            "The same command finishes it. If the run is not your own, do not use it.",
        )
    known = RunFolder(folder).read()
    if known is None:
        return  # a file without a run folder
    if not known.complete:
        raise StateError(f"{folder}: the run is not finished.", "The same `scan` command finishes it.")
    mark = known.files.get(file.name)
    if mark is not None and not file.exists():
        raise StateError(f"{file}: missing.", "Put it back, or scan the dataset again with --force.")
    try:
        changed = mark is not None and sha256_of(file) != mark
    except OSError as error:
        raise StateError(f"{file}: {error.strerror}.", "Scan the dataset again with --force.") from error
    if changed:
        raise StateError(f"{file}: changed since the run wrote it.", "Scan the dataset again with --force.")


def _read_record(file: Path) -> RunRecord | None:
    """Return a run.json, with its hash checked, or None if there is none."""
    if not os.path.lexists(file):
        return None
    try:
        document = read_json(file)
        newer = document["schema_version"] if isinstance(document, dict) else 0
        if isinstance(newer, int) and newer > SCHEMA_VERSION:
            raise StateError(
                f"{file}: schema version {newer}; this noisesieve reads up to {SCHEMA_VERSION}.", "Upgrade noisesieve."
            )
        return RunRecord.from_document(document)
    except (ValueError, KeyError, OSError, RecursionError) as error:
        raise StateError(f"{file}: damaged ({error}).", "Scan again with --force.") from error
