"""What heads are retrained on: the run's rows with their stored features, and a test set with its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from noisesieve.commands._dataset import Dataset
from noisesieve.commands._folds import groups_of
from noisesieve.commands._own_vectors import OwnVectors, features_of_vectors
from noisesieve.commands._test_set import read_test_set
from noisesieve.commands.command_settings import RetrainSettings
from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.errors import InputError, StateError
from noisesieve.core.records import FileFacts, Index, Ints
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.frozen.features import Features, compute_features
from noisesieve.learn.frozen.head_data import HeadData, Projected
from noisesieve.learn.networks.pretrained import weights_file, with_weights_hash
from noisesieve.learn.recipes import HeadRecipe
from noisesieve.pixels.decoded import Decoded
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.build_table import column_codes
from noisesieve.report.report import Report


@dataclass(frozen=True)
class RetrainRows:
    """The run's rows with their features, as the scan had them."""

    data: HeadData
    projected: Projected
    rows: Ints  # (N,) of the report
    recipe: HeadRecipe
    classes: list[str]
    weights: Path | None  # file of the backbone's weights; None for embeddings


def read_vectors(report: Report, scanned: ScanSettings, index: Index, session: TrainingSession) -> OwnVectors | None:
    """Return the run's embeddings, if it was scanned from some. Changed ones are refused."""
    vectors = OwnVectors.read(scanned, index, session)
    if vectors is not None and vectors.content() != report.facts.settings["vectors"]["sha256"]:
        raise StateError(f"{scanned.embeddings}: changed since the run.", "Scan again, or put the old file back.")
    return vectors


def read_rows(
    report: Report,
    scanned: ScanSettings,
    settings: RetrainSettings,
    index: Index,
    decoded: Decoded,
    vectors: OwnVectors | None,
    session: TrainingSession,
    *,
    scratch: Path,
) -> RetrainRows:
    """Return the run's rows with their features, from the cache, and the scan's folds."""
    recipe, classes = report.summary.training.recipe, report.facts.classes
    assert isinstance(recipe, HeadRecipe)
    weights = None
    if vectors is not None:
        features = features_of_vectors(vectors, decoded.file_facts)
    else:
        weights = weights_file(scanned.training.weights or recipe.weights, recipe.backbone)
        if weights is None or with_weights_hash(recipe, weights).weights_sha256 != recipe.weights_sha256:
            raise StateError(f"{recipe.weights}: not the weights of the run.", "Scan again with --force.")
        features = compute_features(decoded, recipe, weights, settings.pixels, session, scratch=scratch / "features")
    codes = index.column("labels").codes(classes)[decoded.rows]
    column = scanned.keep_together
    groups = None if column in (None, "none") else column_codes(index, str(column))[decoded.rows]
    dataset = Dataset(index, decoded, classes, codes, recipe, weights, vectors=vectors, groups=groups)
    unknown = torch.zeros(len(codes), dtype=torch.bool)
    data = HeadData(features, torch.from_numpy(codes), len(classes), unknown)
    projected = Projected.of(data, replace(recipe, depths=()))
    data = replace(data, groups=groups_of(dataset, data, projected, scanned, session))
    if recipe.depths != features.depths:
        projected = Projected.of(data, recipe)
    return RetrainRows(data, projected, decoded.rows, recipe, classes, weights)


def read_test(
    report: Report, settings: RetrainSettings, size: int, decoder: Decoder, session: TrainingSession
) -> tuple[Index, FileFacts] | None:
    """Return the rows of the test set whose class the run has."""
    if (source := settings.test.source) is None:
        return None
    if not size:
        raise InputError("--test: a test set of images does not fit a run from embeddings.", "Leave it out.")
    return read_test_set(source, report.facts.classes, size, decoder, session)


def test_rows(
    index: Index,
    decoded: Decoded,
    rows: RetrainRows,
    settings: RetrainSettings,
    session: TrainingSession,
    *,
    scratch: Path,
) -> tuple[Features, Ints]:
    """Return the features of the test set, and its right labels."""
    if len(decoded.rows) == 0:
        raise InputError(f"{index.root}: no image of the test set can be read.", "Is its root right?")
    assert rows.weights is not None
    features = compute_features(decoded, rows.recipe, rows.weights, settings.pixels, session, scratch=scratch)
    return features, index.column("labels").codes(rows.classes)[decoded.rows]
