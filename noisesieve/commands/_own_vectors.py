"""The user's own vectors: rows that have embeddings (heads are trained on them) or predictions instead of images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.columns import HASH_BYTES, Hashes, Texts
from noisesieve.core.errors import StateError, UsageError
from noisesieve.core.progress import Session
from noisesieve.core.records import FileFacts, Index, Probabilities
from noisesieve.core.text import natural_key
from noisesieve.learn.frozen.features import Features, numbered_by_hash
from noisesieve.learn.plan import plan_heads
from noisesieve.learn.recipes import HeadRecipe
from noisesieve.report.report import Report
from noisesieve.sources.containers import read_whole
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.vectors import read_embeddings, read_predictions

IN_SAMPLE = 0.995  # agreement with the given labels above which predictions look as if they were trained on them


@dataclass(frozen=True)
class OwnVectors:
    """One vector per row of an index."""

    kind: str  # embeddings or predictions
    values: Probabilities  # (N, D), or (N, K)
    classes: list[str]
    mark: str = ""  # hash of predictions as the file has them, in float64

    @classmethod
    def read(cls, settings: ScanSettings, index: Index, session: Session) -> OwnVectors | None:
        """Read the file that the settings name; None if images are to be scanned."""
        labels = sorted(index.column("labels").distinct(), key=natural_key)
        if settings.embeddings is not None:
            values = read_embeddings(settings.embeddings, index, ids_of_table(settings.source, index))
            return cls("embeddings", values, labels)
        if settings.predictions is None:
            return None
        probs, classes, mark = read_predictions(
            settings.predictions, index, ids_of_table(settings.source, index), settings.classes
        )
        agreement = float((probs.argmax(axis=1) == index.column("labels").codes(classes)).mean())
        if agreement > IN_SAMPLE:
            session.warn(
                f"The predictions agree with {agreement:.1%} of the labels: they look as if the model was trained on "
                "these rows. Out-of-sample predictions are needed, such as those of a cross-validation."
            )
        return cls("predictions", probs, classes, mark)

    def file_facts(self) -> FileFacts:
        """Return what stands for files: the hash of each embedding; predictions have none."""
        count = len(self.values)
        found, none = np.zeros((count, HASH_BYTES), dtype=np.uint8), np.ones(count, dtype=np.bool_)
        if self.kind == "embeddings":
            none[:] = False
            for row, values in enumerate(self.values):
                found[row] = np.frombuffer(hashlib.sha256(values.data).digest(), dtype=np.uint8)
        zeros = np.zeros(count, dtype=np.int64)
        status = pa.DictionaryArray.from_arrays(np.zeros(count, dtype=np.int32), ["ok"])
        return FileFacts(Hashes.of_bytes(found, none), Texts(status), zeros, zeros)

    def content(self) -> str:
        """Return the hash of all vectors."""
        return self.mark or hashlib.sha256(self.values.data).hexdigest()

    def recipe(self, settings: ScanSettings) -> HeadRecipe:
        """Return the recipe of heads on embeddings; predictions are not trained on."""
        recipe = plan_heads(settings.training, rows=len(self.values), classes=len(self.classes), name=self.kind)
        if self.kind == "predictions":
            return replace(recipe, beta=0.0, epochs=0, warmup_epochs=0, ramp_epochs=0, sieve_start=0, flip=False)
        return recipe


def features_of_vectors(vectors: OwnVectors, file_facts: FileFacts) -> Features:
    """Return embeddings as the features of their rows, of one view and one depth."""
    values: Any = vectors.values[:, None, :]  # read as float32 anyway
    return Features.in_memory({vectors.kind: values}, torch.from_numpy(numbered_by_hash(file_facts.hashes)))


def ids_of_table(source: SourceSettings, index: Index) -> Sequence[str]:
    """Return the ids of the whole table: a file of vectors has one row for each, whatever --split and --limit leave."""
    narrowed = source.split is not None or source.limit is not None
    return read_whole(replace(source, images=False)).ids if narrowed else index.ids


def kind_of_vectors(report: Report) -> str | None:
    """Return `embeddings` or `predictions` for a run that was scanned from such a file, else None."""
    vectors = report.facts.settings.get("vectors")
    return None if vectors is None else str(vectors["kind"])


def refuse_vectors(report: Report, command: str, *kinds: str) -> None:
    """Refuse a command that needs images, or a model, for a run that was scanned without them."""
    if (kind := kind_of_vectors(report)) in kinds:
        missing = "a model" if kind == "predictions" else "images"
        raise StateError(
            f"{report.path.parent}: was scanned from {kind}: `{command}` needs {missing}.",
            "Scan the images themselves." if kind == "embeddings" else "Scan embeddings, or the images themselves.",
        )


def validate_vectors(settings: ScanSettings) -> None:
    """Refuse options that exclude each other."""
    if settings.embeddings is not None and settings.predictions is not None:
        raise UsageError("--embeddings and --predictions: give one of them.")
    if settings.classes and settings.predictions is None:
        raise UsageError("--classes names the columns of --predictions.", "Leave it out.")
    options = settings.training
    if settings.has_vectors and (options.weights or options.backbone or options.image_size):
        raise UsageError("--weights, --backbone and --image-size are for images.", "Leave them out.")
    if settings.has_vectors and settings.source.path.is_dir():
        raise UsageError("--embeddings and --predictions need a table of labels.", "Give a .csv, .jsonl or .parquet.")
