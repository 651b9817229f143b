"""Checkpoints: safetensors files with a SHA-256 at their end. The previous one is kept; nothing is unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from noisesieve.core.errors import StateError
from noisesieve.core.files import Json, atomic_write
from noisesieve.core.untrusted import open_regular

DIGEST = 32  # bytes of SHA-256 at the end of the file
KEPT = 2


class Checkpoint(NamedTuple):
    """The state of a training."""

    tensors: dict[str, Tensor]
    facts: Json  # everything that is not a tensor


class CheckpointStore(Protocol):
    """Stores the state of a training and returns it."""

    def save(self, number: int, checkpoint: Checkpoint) -> None: ...
    def latest(self) -> Checkpoint | None: ...


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, *, identity: str, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._identity = identity  # hash of settings and data; a checkpoint of another run is refused
        self._warn = warn

    def save(self, number: int, checkpoint: Checkpoint) -> None:
        """Write checkpoint `number` atomically, then delete all but the last two."""
        metadata = {"identity": self._identity, "facts": json.dumps(checkpoint.facts)}
        blob = save({name: tensor.contiguous().cpu() for name, tensor in checkpoint.tensors.items()}, metadata)
        with atomic_write(self._folder / f"{number:08}.ckpt") as file:
            file.write(blob)
            file.write(hashlib.sha256(blob).digest())
        for old in self._files()[:-KEPT]:
            old.unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint, or None if there is none yet. Warns of a damaged one."""
        files = self._files()
        for file in reversed(files):
            checkpoint = self._read(file)
            if checkpoint is not None:
                metadata, tensors = checkpoint
                if metadata.get("identity") != self._identity:
                    raise StateError(
                        f"{file}: belongs to another recipe: the device, the version or the data changed since.",
                        "Start a new run with --force.",
                    )
                return Checkpoint(tensors, _facts(metadata, file))
            self._warn(f"{file.name} is damaged (its SHA-256 does not match); using the checkpoint before it.")
        if files:
            raise StateError(f"{self._folder}: every checkpoint is damaged.", "Start a new run with --force.")
        return None

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("[0-9]" * 8 + ".ckpt"))

    def _read(self, file: Path) -> tuple[dict[str, str], dict[str, Tensor]] | None:
        """Return metadata and tensors, or None if the file is damaged."""
        with open_regular(file, follow=False) as opened:
            content = opened.read()
        blob, mark = content[:-DIGEST], content[-DIGEST:]
        if hashlib.sha256(blob).digest() != mark:
            return None
        try:
            header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
            return header["__metadata__"], load(blob)
        except (SafetensorError, KeyError, ValueError, TypeError, RecursionError):
            return None


def _facts(metadata: dict[str, str], file: Path) -> Json:
    try:
        facts = json.loads(metadata["facts"])
        if isinstance(facts, dict):
            return facts
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    raise StateError(f"{file}: not a checkpoint of noisesieve.", "Start a new run with --force.")
