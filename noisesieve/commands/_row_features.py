"""The features of a run's rows, where they are stored: in the cache, or in the user's own file of embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from noisesieve.commands._open_run import pixel_settings_of_run, settings_of_run
from noisesieve.commands._own_vectors import ids_of_table, kind_of_vectors
from noisesieve.core.columns import Hashes
from noisesieve.core.errors import InputError
from noisesieve.core.records import Index, Ints
from noisesieve.learn.device import has_device
from noisesieve.learn.frozen.features import depth_files, feature_folder
from noisesieve.learn.recipes import HeadRecipe
from noisesieve.pixels.pixel_cache import default_cache_dir
from noisesieve.report.report import Report
from noisesieve.report.saved_model import statistics_of_model
from noisesieve.sources.vectors import read_embeddings


def open_features(report: Report, index: Index, rows: Ints) -> Callable[[Ints], Tensor] | None:
    """Return a function that reads the features of some of these rows, of length 1; None unless all are stored.

    They are verified once, here. Raises InputError if the user's file of embeddings is gone, or another one.
    """
    kind = kind_of_vectors(report)
    if kind == "predictions":
        return None
    return _own_embeddings(report, index, rows) if kind is not None else _stored_features(report, rows)


def _own_embeddings(report: Report, index: Index, rows: Ints) -> Callable[[Ints], Tensor]:
    settings = settings_of_run(report)
    if settings.embeddings is None:
        raise InputError("The run was scanned from an array of Python, which was not saved.")
    file = settings.embeddings
    vectors = read_embeddings(file, index, ids_of_table(settings.source, index))
    hashes = report.take(rows, "sha256")["sha256"].to_pylist()
    for row, sha in zip(rows.tolist(), hashes, strict=True):
        if hashlib.sha256(vectors[row].data).hexdigest() != sha:
            raise InputError(f"{file}: the embedding of {index.ids[row]!r} changed since the run.", "Scan again.")
    return lambda chosen: normalize(torch.from_numpy(vectors[chosen]), dim=1)


def _stored_features(report: Report, rows: Ints) -> Callable[[Ints], Tensor] | None:
    recipe, folder, name = report.summary.training.recipe, report.path.parent, report.summary.training.device
    if not isinstance(recipe, HeadRecipe) or not has_device(name):
        return None
    settings, device = pixel_settings_of_run(report), torch.device(name)
    root = settings.cache_dir or default_cache_dir()
    place = feature_folder(root, recipe, settings, device, statistics_of_model(folder))
    hashes = Hashes(report.take(rows, "sha256")["sha256"])
    files = [file for file in depth_files(place, recipe) if not recipe.depths or file.name in recipe.depths]
    for file in files:
        file.drop_damaged(hashes)
        if file.missing(hashes).any():
            return None
    order = np.argsort(rows)
    slots = [file.slots(hashes) for file in files]

    def read(chosen: Ints) -> Tensor:
        places = order[np.searchsorted(rows, chosen, sorter=order)]
        pairs = zip(files, slots, strict=True)
        parts = [torch.from_numpy(file.open()[own[places]].astype(np.float32)).mean(dim=1) for file, own in pairs]
        return normalize(torch.cat(parts, dim=1), dim=1)

    return read
