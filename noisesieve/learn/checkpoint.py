"""Checkpoints: safetensors files with a SHA-256 at their end. The previous one is kept; nothing is unpickled.

Ours: torch's distributed checkpoints load a flipped bit without a word, unpickle their metadata, and are written in
place.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from noisesieve.core.errors import StateError
from noisesieve.core.files import Json, atomic_write
from noisesieve.core.untrusted import open_regular
from noisesieve.learn.distributed import TrainingSession

DIGEST = 32  # bytes of SHA-256 at the end of the file
KEPT = 2
OWN = "own."  # starts the names of a rank's own tensors
DTYPES = {  # as safetensors spells them
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Checkpoint(NamedTuple):
    """The state of a training."""

    tensors: dict[str, Tensor]
    facts: Json  # everything that is not a tensor
    parts: Mapping[str, Tensor] = MappingProxyType({})  # large, with a row per row of the dataset: this rank's part
    own: Mapping[str, Tensor] = MappingProxyType({})  # what differs between several ranks: this one's


class CheckpointStore(Protocol):
    """Stores the state of a training and returns it."""

    def save(self, number: int, checkpoint: Checkpoint) -> None: ...
    def latest(self, rows: int) -> Checkpoint | None: ...
    def wait(self) -> None: ...


class Checkpoints:
    """The checkpoints of one run folder. Rank 0 writes the state, and every rank its part of the large tensors.

    They are written beside the training, by a thread: nothing that is passed to `save` may change meanwhile, but for
    the parts, which change only after `wait`.
    """

    def __init__(
        self, folder: Path, *, identity: str, warn: Callable[[str], None], rank: int = 0, ranks: int = 1
    ) -> None:
        self._folder = folder
        self._identity = identity  # hash of settings and data; a checkpoint of another run is refused
        self._warn = warn
        self._rank, self._ranks = rank, ranks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    @classmethod
    def of_rank(cls, folder: Path, identity: str, session: TrainingSession) -> Checkpoints:
        """Return the checkpoints as this process writes and reads them."""
        processes = session.processes
        return cls(folder, identity=identity, warn=session.warn, rank=processes.rank, ranks=processes.size)

    def save(self, number: int, checkpoint: Checkpoint) -> None:
        """Begin to write checkpoint `number` atomically; then all but the last two are deleted."""
        self.wait()
        self._writing = self._thread.submit(self._write, number, checkpoint)

    def wait(self) -> None:
        """Wait until what `save` began is written. Its errors are raised here."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _write(self, number: int, checkpoint: Checkpoint) -> None:
        tensors, facts = checkpoint.tensors, {**checkpoint.facts, "ranks": self._ranks}
        if self._ranks > 1:
            shared = {**checkpoint.parts, **{f"{OWN}{name}": value for name, value in checkpoint.own.items()}}
            self._write_file(self._folder / _part_name(number, self._rank, self._ranks), shared, {})
        else:
            tensors = {**tensors, **checkpoint.parts}
        if self._rank > 0:
            return
        facts["parts"] = list(checkpoint.parts)
        self._write_file(self._folder / f"{number:08}.ckpt", tensors, facts)
        for old in self._files()[:-KEPT]:
            for part in self._folder.glob(f"{old.stem}.*.part"):
                part.unlink(missing_ok=True)
            old.unlink(missing_ok=True)

    def _write_file(self, file: Path, tensors: Mapping[str, Tensor], facts: Json) -> None:
        """Write tensors without a copy of them in memory, and the SHA-256 of the file at its end."""
        metadata = {"identity": self._identity, "facts": json.dumps(facts)}
        with atomic_write(file) as out:
            hasher = hashlib.sha256()
            for piece in _safetensors(tensors, metadata):
                hasher.update(piece)
                out.write(piece)
            out.write(hasher.digest())

    def latest(self, rows: int) -> Checkpoint | None:
        """Return the newest undamaged checkpoint, or None if there is none yet. Warns of a damaged one.

        `rows` is the number of rows of the dataset. The parts are this rank's, however many ranks wrote them.
        """
        self.wait()
        files = self._files()
        for file in reversed(files):
            if (found := self._read(file)) is not None:
                metadata, tensors = found
                if metadata.get("identity") != self._identity:
                    raise StateError(
                        f"{file}: belongs to another recipe: the device, the version or the data changed since.",
                        "Start a new run with --force.",
                    )
                facts = _facts(metadata, file)
                if (found_parts := self._parts(file, tensors, facts, rows)) is not None:
                    return Checkpoint(tensors, facts, *found_parts)
            self._warn(f"{file.name} is damaged (its SHA-256 does not match); using the checkpoint before it.")
        if files:
            raise StateError(f"{self._folder}: every checkpoint is damaged.", "Start a new run with --force.")
        return None

    def _parts(
        self, file: Path, tensors: dict[str, Tensor], facts: Json, rows: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
        """Return this rank's part of the large tensors and its own ones, or None if a file of them is damaged.

        If another number of ranks wrote them, the own ones are the mean over those ranks.
        """
        names, ranks = facts.pop("parts", None), facts.pop("ranks", 1)
        if names is None:  # an earlier version, which has them whole
            names = [name for name in ("prob_sum", "ce_snapshot") if name in tensors]
        begin, end = _bounds(rows, self._rank, self._ranks)
        if ranks == 1:
            whole = {name: tensors.pop(name) for name in names}
            return whole if self._ranks == 1 else {name: value[begin:end].clone() for name, value in whole.items()}, {}
        pieces: dict[str, list[Tensor]] = {name: [] for name in names}
        own: dict[str, list[Tensor]] = {}
        for rank in range(ranks):  # every rank verifies every file: all must go on from the same checkpoint
            found = self._read(file.with_name(_part_name(int(file.stem), rank, ranks)))
            if found is None:
                return None
            first, last = _bounds(rows, rank, ranks)
            for name in names:
                piece = found[1][name][max(0, begin - first) : max(0, min(end, last) - first)]
                pieces[name].append(piece.clone())
            if ranks != self._ranks or rank == self._rank:
                for name, value in found[1].items():
                    if name.startswith(OWN):
                        own.setdefault(name.removeprefix(OWN), []).append(value)
        means = {name: values[0] if len(values) == 1 else torch.stack(values).mean(0) for name, values in own.items()}
        return {name: torch.cat(parts) for name, parts in pieces.items()}, means

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("[0-9]" * 8 + ".ckpt"))

    def _read(self, file: Path) -> tuple[dict[str, str], dict[str, Tensor]] | None:
        """Return metadata and tensors, or None if the file is damaged."""
        try:
            with open_regular(file, follow=False) as opened:
                blob = opened.read(max(0, os.fstat(opened.fileno()).st_size - DIGEST))
                mark = opened.read()
        except FileNotFoundError:
            return None
        if hashlib.sha256(blob).digest() != mark:
            return None
        try:
            header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
            return header["__metadata__"], load(blob)
        except (SafetensorError, KeyError, ValueError, TypeError, RecursionError):
            return None


def _safetensors(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file piece by piece. The library has the whole file in memory, or writes it out of reach of
    the hash.
    """
    header: Json = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        yield tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _part_name(number: int, rank: int, ranks: int) -> str:
    return f"{number:08}.{rank}-of-{ranks}.part"


def _bounds(rows: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the first row of a rank's part, and the row after its last, as `torch.tensor_split` divides them."""
    size, more = divmod(rows, ranks)
    begin = rank * size + min(rank, more)
    return begin, begin + size + (rank < more)


def _facts(metadata: dict[str, str], file: Path) -> Json:
    try:
        facts = json.loads(metadata["facts"])
        if isinstance(facts, dict):
            return facts
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    raise StateError(f"{file}: not a checkpoint of noisesieve.", "Start a new run with --force.")
