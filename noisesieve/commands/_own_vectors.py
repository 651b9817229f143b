"""Scan the user's own embeddings (heads on them) or predictions (the closed form alone) instead of images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from noisesieve import pixels, sources
from noisesieve.commands._prepare import Dataset, digest_of_decisions
from noisesieve.commands._train import train_heads
from noisesieve.core.errors import InputError, StateError, UsageError
from noisesieve.core.progress import Session
from noisesieve.core.recipes import HeadRecipe, recipe_to_document
from noisesieve.core.records import Bytes, Decided, FileFacts, Floats, Index, Ints, Scores, TrainingFacts
from noisesieve.core.settings import ScanSettings, SourceSettings
from noisesieve.core.text import natural_key
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.frozen.features import Features
from noisesieve.learn.plan import plan_heads
from noisesieve.report import Report, class_codes, fingerprint
from noisesieve.report.differences import Identity
from noisesieve.report.model_card import TrainedWeights
from noisesieve.sieve.decide import choose_floor
from noisesieve.sources.vectors import read_embeddings, read_predictions

IN_SAMPLE = 0.995  # agreement with the given labels above which predictions look as if they were trained on them


@dataclass(frozen=True)
class OwnVectors:
    """One vector per row of an index."""

    kind: str  # embeddings or predictions
    values: npt.NDArray[np.float32] | Floats  # (N, D), or (N, K)
    classes: list[str]

    @classmethod
    def read(cls, settings: ScanSettings, index: Index, session: Session) -> OwnVectors | None:
        """Read the file that the settings name; None if images are to be scanned."""
        labels = sorted(set(index.labels), key=natural_key)
        if settings.embeddings is not None:
            values = read_embeddings(settings.embeddings, index, ids_of_table(settings.source, index))
            return cls("embeddings", values, labels)
        if settings.predictions is None:
            return None
        probs, classes = read_predictions(
            settings.predictions, index, ids_of_table(settings.source, index), settings.classes
        )
        agreement = float((probs.argmax(axis=1) == class_codes(index.labels, classes)).mean())
        if agreement > IN_SAMPLE:
            session.warn(
                f"The predictions agree with {agreement:.1%} of the labels: they look as if the model was trained on "
                "these rows. Out-of-sample predictions are needed, such as those of a cross-validation."
            )
        return cls("predictions", probs, classes)

    def file_facts(self) -> FileFacts:
        """Return what stands for files: the hash of each embedding; predictions have none."""
        count = len(self.values)
        hashes: list[str | None] = [None] * count
        if self.kind == "embeddings":
            hashes = [hashlib.sha256(row.tobytes()).hexdigest() for row in self.values]
        zeros = np.zeros(count, dtype=np.int64)
        return FileFacts(hashes, ["ok"] * count, zeros, zeros)

    def content(self) -> str:
        """Return the hash of all vectors."""
        return hashlib.sha256(np.ascontiguousarray(self.values).tobytes()).hexdigest()

    def identity(self, settings: ScanSettings, index: Index, file_facts: FileFacts, device: str) -> Identity:
        """Return what the run is recognised by."""
        return {
            **settings.identity(),
            "device": device,
            "recipe": recipe_to_document(self._recipe(settings)),
            "fingerprint": fingerprint(index, file_facts),
            "vectors": {
                "kind": self.kind,
                "sha256": self.content(),
                "classes": list(settings.classes),
            },  # as the columns are
            **({"decisions": digest_of_decisions(settings)} if settings.decisions else {}),
        }

    def _recipe(self, settings: ScanSettings) -> HeadRecipe:
        recipe = plan_heads(settings.training, rows=len(self.values), classes=len(self.classes), name=self.kind)
        if self.kind == "predictions":
            return replace(recipe, beta=0.0, epochs=0, warmup_epochs=0, ramp_epochs=0, sieve_start=0, flip=False)
        return recipe

    def dataset(self, index: Index, file_facts: FileFacts, settings: ScanSettings, decided: Decided) -> Dataset:
        """Return the rows with the labels to learn."""
        if len(self.classes) < 2:
            raise InputError("A scan needs at least two classes.")
        learnt = {row: found.label for row, found in decided.items()}
        codes = class_codes([learnt.get(row) or label for row, label in enumerate(index.labels)], self.classes)
        decoded = pixels.Decoded(file_facts, np.arange(len(index)), _NoPixels(len(index)), reused=True)
        return Dataset(index, decoded, self.classes, codes, self._recipe(settings), None, None, decided)

    def train(self, dataset: Dataset, session: TrainingSession) -> tuple[Dataset, TrainedWeights | None, Scores]:
        """Train heads on embeddings; predictions are scores already."""
        if self.kind == "embeddings":
            _, contents = np.unique(np.array(dataset.decoded.file_facts.sha256), return_inverse=True)
            vectors: Any = np.asarray(self.values, dtype=np.float32)[:, None, :]  # one view; read as float32 anyway
            features = Features.in_memory({self.kind: vectors}, torch.from_numpy(contents.astype(np.int64)))
            return train_heads(dataset, features, session)
        return self._scores(dataset, session)

    def _scores(self, dataset: Dataset, session: TrainingSession) -> tuple[Dataset, None, Scores]:
        """Return the user's probabilities as scores: beta 0, the counted prior, the floor chosen from them."""
        recipe, probs, rows = dataset.recipe, np.asarray(self.values, dtype=np.float64), len(self.values)
        assert isinstance(recipe, HeadRecipe)
        eps = recipe.sieve_eps
        if recipe.adaptive_eps:
            eps = choose_floor(torch.from_numpy(probs), torch.from_numpy(dataset.given_codes), beta=0.0)
        counted = np.bincount(dataset.given_codes, minlength=len(self.classes)) / rows
        facts = TrainingFacts(
            warmup_epochs=0,
            epochs=0,
            sieve_start=0,
            flip=False,
            held_out=rows,
            held_out_agreement=[],
            loop_eps=recipe.loop_eps,
        )
        scores = Scores(probs, None, counted, 0.0, [], facts, out_of_fold=True, sieve_eps=eps)
        session.note("The closed form is applied to your probabilities; nothing is trained.")
        return replace(dataset, recipe=replace(recipe, sieve_eps=eps)), None, scores


@dataclass(frozen=True)
class _NoPixels:
    """Stands for the pixels of rows that have vectors instead."""

    rows: int
    size: int = 0

    def __len__(self) -> int:
        return self.rows

    def batches(self, order: Sequence[Ints]) -> Iterator[Bytes]:
        raise AssertionError("rows with vectors have no pixels")


def ids_of_table(source: SourceSettings, index: Index) -> list[str]:
    """Return the ids of the whole table: a file of vectors has one row for each, whatever --split and --limit leave."""
    narrowed = source.split is not None or source.limit is not None
    return sources.read_all(replace(source, images=False)).ids if narrowed else index.ids


def kind_of_vectors(report: Report) -> str | None:
    """Return `embeddings` or `predictions` for a run that was scanned from such a file, else None."""
    found = report.facts.settings.get("vectors")
    return None if found is None else str(found["kind"])


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
