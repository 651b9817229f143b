"""What a run is recognised by, and where a later command finds its data again."""

from __future__ import annotations

from pathlib import Path

from noisesieve.commands._own_vectors import OwnVectors
from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.errors import InputError
from noisesieve.core.files import digest, sha256_of
from noisesieve.core.records import FileFacts, Index
from noisesieve.learn.networks.backbones import LITE
from noisesieve.learn.networks.pretrained import IMAGENET, NONE
from noisesieve.learn.networks.timm_net import is_timm
from noisesieve.learn.recipes import HeadRecipe, Recipe, recipe_to_document
from noisesieve.report.run import Identity, fingerprint

ARRAY = ".array-"  # starts the name of a file that Python's `scan` makes of an array, and removes


def identity_of_run(
    settings: ScanSettings,
    index: Index,
    file_facts: FileFacts,
    recipe: Recipe,
    *,
    compared_heads: HeadRecipe | None,
    vectors: OwnVectors | None,
    device: str,
) -> Identity:
    """Return what a run is recognised by: its settings, its data, the device, and the recipe these lead to.

    The recipe has the hash of the weights, so that other weights are another run.
    """
    identity: Identity = {
        **settings.identity(),
        "device": device,
        "recipe": recipe_to_document(recipe),
        "fingerprint": fingerprint(index, file_facts),
    }
    if vectors is None:
        identity["compared_heads"] = None if compared_heads is None else recipe_to_document(compared_heads)
    else:  # the classes in the order of the columns
        columns = list(settings.classes)
        identity["vectors"] = {"kind": vectors.kind, "sha256": vectors.content(), "classes": columns}
    if settings.decisions:
        identity["decisions"] = digest_of_decisions(settings)
    return identity


def digest_of_decisions(settings: ScanSettings) -> str:
    """Return one hash of the decision files: a run that learnt from other decisions is another run."""
    try:
        return digest(sorted(sha256_of(file) for file in settings.decisions))
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}.", "Check --decisions.") from error


def location_of_data(settings: ScanSettings) -> dict[str, str]:
    """Return the absolute paths that a later command needs to find the data again."""
    paths = settings.source.location()
    if (file := own_weights(settings)) is not None:
        paths["weights"] = file
    for name in ("embeddings", "predictions"):
        if (file := getattr(settings, name)) is not None and not file.name.startswith(ARRAY):
            paths[name] = file
    if settings.pixels.cache_dir is not None:
        paths["cache"] = settings.pixels.cache_dir
    outside = {"outside": "accepted"} if settings.source.allow_outside else {}
    return {name: str(path.resolve()) for name, path in paths.items()} | outside


def own_weights(settings: ScanSettings) -> Path | None:
    """Return the user's own weights file, or None."""
    weights = settings.training.weights
    return None if weights in (None, NONE, IMAGENET, LITE) or is_timm(weights) else Path(str(weights))
