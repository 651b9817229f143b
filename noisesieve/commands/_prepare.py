"""What commands that train do first: check the settings, identify the run, decode a dataset or a test set."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from noisesieve import pixels, sources
from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.files import digest, sha256_of
from noisesieve.core.progress import Session
from noisesieve.core.recipes import HeadRecipe, Recipe, recipe_to_document
from noisesieve.core.records import Bools, Decided, FileFacts, Index, Ints
from noisesieve.core.settings import PixelSettings, ScanSettings, SourceSettings
from noisesieve.core.text import carried_name, natural_key
from noisesieve.learn.cost import weight_bytes
from noisesieve.learn.device import choose_device, require_device
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.frozen.features import feature_bytes
from noisesieve.learn.networks.backbones import BACKBONES, LITE
from noisesieve.learn.networks.pretrained import (
    IMAGENET,
    NONE,
    require_fitting,
    require_readable,
    weights_file,
    with_weights_hash,
)
from noisesieve.learn.networks.timm_net import is_timm, require_known
from noisesieve.learn.plan import backbone_of, choose_weights, fit_beta, image_size, plan, plan_beside
from noisesieve.report import class_codes, fingerprint
from noisesieve.report.differences import Identity
from noisesieve.report.schema import COLUMNS
from noisesieve.retrain.data import LabelledTestSet

UNREADABLE_SHOWN = 20
ARRAY = ".array-"  # starts the name of a file that Python's `scan` makes of an array, and removes
HEADERS = 64  # headers from which the training size is guessed


@dataclass(frozen=True)
class Dataset:
    """The readable rows of a dataset, decoded, with the recipe to train on them."""

    index: Index
    decoded: pixels.Decoded
    classes: list[str]  # those that occur in readable rows, in natural order
    codes: Ints  # (N,) labels of the readable rows to learn from, as positions in `classes`
    recipe: Recipe
    weights: Path | None  # file of the initial weights
    beside: HeadRecipe | None = None  # heads that are scored beside the network
    decided: Decided = field(default_factory=dict)

    @property
    def trusted(self) -> Bools:
        """(N,) True for readable rows whose label is known to be right: marked in the table, or decided by a person."""
        trusted = self.index.trusted
        found = np.zeros(len(self.codes), dtype=np.bool_) if trusted is None else trusted[self.decoded.rows]
        labelled = [row for row, decided in self.decided.items() if decided.label is not None]
        return found | np.isin(self.decoded.rows, labelled)

    @property
    def settled(self) -> Bools:
        """(N,) True for readable rows that are never suspects: trusted, or decided in whatever way."""
        return self.trusted | np.isin(self.decoded.rows, list(self.decided))

    @property
    def given_codes(self) -> Ints:
        """(N,) the given labels of the readable rows; `codes` are the ones to learn, with decisions in place."""
        return class_codes([self.index.labels[row] for row in self.decoded.rows.tolist()], self.classes)


def validate_settings(settings: ScanSettings) -> None:
    """Refuse settings that are wrong for every dataset, before anything is read or written."""
    require_device(settings.device)
    options = settings.training
    for name, option in ((options.backbone, "--backbone"), (options.weights, "--weights")):
        if is_timm(name):
            require_known(str(name), option)
    if options.backbone not in (None, *BACKBONES) and not is_timm(options.backbone):
        raise UsageError(f"--backbone {options.backbone}: unknown.", f"Choose {', '.join(BACKBONES)} or timm/NAME.")
    device = choose_device(settings.device).type
    weights, _ = choose_weights(options, device=device)
    file = weights_file(weights, backbone_of(options, weights, device))
    if file is not None and _own_weights(settings) is not None:
        require_readable(file)


def identity_of_run(settings: ScanSettings, index: Index, file_facts: FileFacts, device: str) -> Identity:
    """Return what a run is recognised by: its settings, its data, the device, and the recipe these lead to.

    The recipe is planned from the headers; it has the hash of the weights, so that other weights are another run.
    """
    readable = [label for label, ok in zip(index.labels, file_facts.readable.tolist(), strict=True) if ok]
    sides, classes = longest_sides(file_facts), len(set(readable))
    recipe, _ = _plan_with_weights(settings, len(readable), classes, sides, device)
    beside = _plan_beside(settings, len(readable), classes, sides, device)
    return {
        **settings.identity(),
        "device": device,
        "recipe": recipe_to_document(recipe),
        "beside": None if beside is None else recipe_to_document(beside),
        "fingerprint": fingerprint(index, file_facts),
        **({"decisions": digest_of_decisions(settings)} if settings.decisions else {}),
    }


def digest_of_decisions(settings: ScanSettings) -> str:
    """Return one hash of the decision files: a run that learnt from other decisions is another run."""
    try:
        return digest(sorted(sha256_of(file) for file in settings.decisions))
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}.", "Check --decisions.") from error


def _plan_with_weights(
    settings: ScanSettings, rows: int, classes: int, sides: Ints, device: str
) -> tuple[Recipe, Path | None]:
    """Return the recipe with the hash of its weights, and the file of the weights."""
    recipe = plan(settings.training, rows=rows, classes=classes, longest_sides=sides, device=device)
    weights, _ = choose_weights(settings.training, device=device)
    file = weights_file(weights, recipe.backbone)
    return with_weights_hash(recipe, file), file


def _plan_beside(settings: ScanSettings, rows: int, classes: int, sides: Ints, device: str) -> HeadRecipe | None:
    """Return the recipe of the heads beside a network, with the hash of its weights, or None."""
    recipe = plan_beside(settings.training, rows=rows, classes=classes, longest_sides=sides, device=device)
    return None if recipe is None else with_weights_hash(recipe, weights_file(recipe.weights, recipe.backbone))


def location_of_data(settings: ScanSettings) -> dict[str, str]:
    """Return the absolute paths that a later command needs to find the data again."""
    paths = settings.source.location()
    if (file := _own_weights(settings)) is not None:
        paths["weights"] = file
    for name in ("embeddings", "predictions"):
        if (file := getattr(settings, name)) is not None and not file.name.startswith(ARRAY):
            paths[name] = file
    if settings.pixels.cache_dir is not None:
        paths["cache"] = settings.pixels.cache_dir
    outside = {"outside": "accepted"} if settings.source.allow_outside else {}
    return {name: str(path.resolve()) for name, path in paths.items()} | outside


def _own_weights(settings: ScanSettings) -> Path | None:
    """Return the user's own weights file, or None."""
    weights = settings.training.weights
    return None if weights in (None, NONE, IMAGENET, LITE) or is_timm(weights) else Path(str(weights))


def guess_size(index: Index, settings: ScanSettings, session: TrainingSession) -> pixels.Ahead:
    """Guess the training size from a few headers, so that images are decoded while all files are read and hashed."""
    if settings.training.image_size is not None:
        return pixels.Ahead(settings.training.image_size)
    count = min(len(index), HEADERS)
    rows = np.unique(np.linspace(0, len(index) - 1, count).round().astype(np.int64))
    sample = pixels.inspect_files(index, settings.pixels, Session(stop=session.stop), rows=rows)
    sides = longest_sides(sample)
    return pixels.Ahead(image_size(settings.training, longest_sides=sides, device=session.device.type))


def prepare_dataset(
    index: Index,
    file_facts: FileFacts,
    settings: ScanSettings,
    session: TrainingSession,
    *,
    scratch: Path,
    ahead: pixels.Ahead | None = None,
    decided: Decided | None = None,
) -> Dataset:
    """Decode every image at the training size and plan the training.

    The size is chosen from the readable images alone: if decoding finds further unreadable ones, it is chosen again.
    """
    device = session.device.type
    size = image_size(settings.training, longest_sides=longest_sides(file_facts), device=device)
    while True:
        decoded = pixels.decode(index, file_facts, settings.pixels, session, size=size, scratch=scratch, ahead=ahead)
        wanted = image_size(settings.training, longest_sides=longest_sides(decoded.file_facts), device=device)
        if wanted == size:
            break
        size = wanted
    warn_of_unreadable(index, decoded.file_facts, session)
    labels = [index.labels[i] for i in decoded.rows.tolist()]
    classes = sorted(set(labels), key=natural_key)
    if len(classes) < 2:
        shutil.rmtree(scratch, ignore_errors=True)
        raise InputError(
            f"{index.root}: {len(labels)} of {len(index)} images can be read, in {len(classes)} classes.",
            "A scan needs at least two classes. Is --root right?",
        )
    if decoded.reused:
        session.note(f"Pixels at {size} px were in the cache.")
    sides = longest_sides(decoded.file_facts)
    recipe, file = _plan_with_weights(settings, len(labels), len(classes), sides, device)
    if file is not None and _own_weights(settings) is not None:
        require_fitting(file, recipe)
    beside = _plan_beside(settings, len(labels), len(classes), sides, device)
    decided = decided or {}
    learnt = {row: found.label for row, found in decided.items() if found.label in classes}
    codes = class_codes([learnt.get(row) or index.labels[row] for row in decoded.rows.tolist()], classes)
    fitted, said = fit_beta(recipe, np.bincount(codes, minlength=len(classes)), classes)
    if said is not None:
        (session.note if fitted != recipe else session.warn)(said)
    return Dataset(index, decoded, classes, codes, fitted, file, beside, decided)


def longest_sides(file_facts: FileFacts) -> Ints:
    """Return the longer side of every readable image."""
    return np.maximum(file_facts.width, file_facts.height)[file_facts.readable]


def warn_of_unreadable(index: Index, file_facts: FileFacts, session: Session) -> None:
    """Name the images that cannot be read, with the reason: the first ones, then a count."""
    bad = np.flatnonzero(~file_facts.readable).tolist()
    for row in bad[:UNREADABLE_SHOWN]:
        session.warn(f"{index.paths[row] or index.ids[row]}: {file_facts.status[row]}")
    if len(bad) > UNREADABLE_SHOWN:
        session.warn(f"… and {len(bad) - UNREADABLE_SHOWN} more that cannot be read; the report names them all.")


def bytes_needed(dataset: Dataset, settings: ScanSettings) -> int:
    """Estimate the largest size of the run folder: two checkpoints and a third being written, or the results."""
    rows, classes = len(dataset.codes), len(dataset.classes)
    if isinstance(dataset.recipe, HeadRecipe):
        features = 0 if settings.pixels.cache else rows * feature_bytes(dataset.recipe)  # with a cache they are there
        return len(dataset.index) * (500 + classes * 4) + features + 2**20
    # Weights: model, average, momentum, each also stashed. Rows: two sums of probabilities, then the margin history.
    checkpoint = 6 * weight_bytes(dataset.recipe, classes) + rows * (classes * 16 + 9)
    checkpoint += rows * 4 * max(0, dataset.recipe.epochs - dataset.recipe.sieve_start + 2)
    return 3 * checkpoint + len(dataset.index) * 500 + 2**20


def inspect_test_set(
    source: SourceSettings, classes: list[str], settings: PixelSettings, session: Session
) -> tuple[Index, FileFacts]:
    """Return the rows of a test set whose class the model has; the others are left out with a warning."""
    index, known = sources.read(source, least_classes=1), set(classes)
    part = index.take(np.array([i for i, label in enumerate(index.labels) if label in known], dtype=np.int64))
    if len(part) == 0:
        raise InputError(f"{index.root}: no label of the test set is a class of the model.", "Is its column right?")
    if len(part) < len(index):
        session.warn(f"{len(index) - len(part):,} test rows have labels that are not classes of the model: left out.")
    return part, pixels.inspect_files(part, settings, session)


def decode_test_set(
    test: tuple[Index, FileFacts],
    classes: list[str],
    size: int,
    settings: PixelSettings,
    session: Session,
    *,
    scratch: Path,
) -> LabelledTestSet:
    """Decode the rows of `inspect_test_set` at the model's image size."""
    index, file_facts = test
    decoded = pixels.decode(index, file_facts, settings, session, size=size, scratch=scratch)
    warn_of_unreadable(index, decoded.file_facts, session)
    if len(decoded.rows) == 0:
        raise InputError(f"{index.root}: no image of the test set can be read.", "Is its root right?")
    codes = class_codes([index.labels[row] for row in decoded.rows.tolist()], classes)
    return LabelledTestSet(decoded.pixels, torch.from_numpy(codes))


def require_column(index: Index, column: str | None) -> None:
    """Refuse an unknown --group-by column before anything is decoded."""
    own = [] if index.carried is None else index.carried.column_names
    ours = {*COLUMNS, *(["split"] if index.splits is not None else [])}
    known = {*ours, *own, *(carried_name(name, ours) for name in own)}
    if column is not None and column not in known:
        raise UsageError(f"--group-by {column}: no such column.", f"Choose one of: {', '.join(own) or 'none'}.")
