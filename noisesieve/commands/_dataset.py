"""The DECODE stage of `scan`: the rows of an index with pixels, or with the user's own vectors, ready to train on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from noisesieve import __version__
from noisesieve.commands._identity import identity_of_run, location_of_data, own_weights
from noisesieve.commands._own_vectors import OwnVectors
from noisesieve.commands.scan_settings import NOTHING_TOGETHER, ScanSettings
from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.progress import Session
from noisesieve.core.records import Bools, FileFacts, Index, Ints
from noisesieve.core.text import natural_key
from noisesieve.decisions.match import find_decisions
from noisesieve.learn.cost import estimate, weight_bytes
from noisesieve.learn.describe import describe, introduce
from noisesieve.learn.device import choose_device, require_device
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.frozen.features import feature_bytes
from noisesieve.learn.memory_plan import IMPORTS, memory_parts, require_memory
from noisesieve.learn.networks.backbones import BACKBONES
from noisesieve.learn.networks.pretrained import require_fitting, require_readable, weights_file, with_weights_hash
from noisesieve.learn.networks.timm_net import is_timm, require_known
from noisesieve.learn.plan import backbone_of, choose_weights, fit_beta, image_size, plan, plan_compared_heads
from noisesieve.learn.recipes import HeadRecipe, Recipe, recipe_to_document
from noisesieve.pixels.decoded import Decoded
from noisesieve.pixels.decoder import Decoder
from noisesieve.pixels.stream import NoPixels
from noisesieve.report.build_table import Decided, column_codes
from noisesieve.report.run import RunFolder, RunRecord

UNREADABLE_SHOWN = 20


@dataclass(frozen=True)
class Dataset:
    """The readable rows of a dataset, decoded, with the recipe to train on them."""

    index: Index
    decoded: Decoded
    classes: list[str]  # those that occur in readable rows, in natural order
    codes: Ints  # (N,) labels of the readable rows to learn from, as positions in `classes`
    recipe: Recipe
    weights: Path | None  # file of the initial weights
    compared_heads: HeadRecipe | None = None  # heads that a network is compared with
    decided: Decided = field(default_factory=dict)
    vectors: OwnVectors | None = None  # what rows have instead of pixels
    groups: Ints | None = None  # (N,) rows with equal numbers stay in one fold, by --keep-together

    @property
    def trusted(self) -> Bools:
        """(N,) True for readable rows whose label is known to be right: marked in the table, or decided by a person."""
        trusted = self.index.trusted
        marked = np.zeros(len(self.codes), dtype=np.bool_) if trusted is None else trusted[self.decoded.rows]
        labelled = [row for row, decided in self.decided.items() if decided.label is not None]
        return marked | np.isin(self.decoded.rows, labelled)

    @property
    def never_suspects(self) -> Bools:
        """(N,) True for readable rows that are never suspects: trusted, or decided in whatever way."""
        return self.trusted | np.isin(self.decoded.rows, list(self.decided))

    @property
    def given_codes(self) -> Ints:
        """(N,) the given labels of the readable rows; `codes` are the ones to learn, with decisions in place."""
        return self.index.column("labels").codes(self.classes)[self.decoded.rows]


@dataclass(frozen=True)
class _Plan:
    """How a dataset will be trained."""

    recipe: Recipe  # with the hash of its weights
    weights: Path | None  # their file
    compared_heads: HeadRecipe | None  # heads that a network is compared with


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
    if file is not None and own_weights(settings) is not None:
        require_readable(file)


def prepare(
    index: Index, settings: ScanSettings, run: RunFolder, decoder: Decoder, session: TrainingSession
) -> tuple[Dataset, RunRecord] | None:
    """Return the rows, decoded, with the recipe to train on them, and the record of the run that begins here.

    None: this run is finished already. Another run in the folder is refused.
    """
    vectors = OwnVectors.read(settings, index, session)
    if vectors is not None:
        file_facts, planned = vectors.file_facts(), _Plan(vectors.recipe(settings), None, None)
    else:
        again = run.is_finished() and not settings.force  # most likely the same run: then no pixels are needed
        if again:
            file_facts = decoder.inspect(index, session=session.without_time_limit())
        else:
            file_facts = decoder.read(index, _size_of(settings, session))
        planned = _plan(index, file_facts, settings, session)
    _require_memory(index, file_facts, vectors, planned.recipe, session)
    identity = identity_of_run(
        settings,
        index,
        file_facts,
        planned.recipe,
        compared_heads=planned.compared_heads,
        vectors=vectors,
        device=session.device.type,
    )
    state = run.find_state(identity, index, file_facts, force=settings.force)
    if state == "finished":
        return None
    classes = () if vectors is None else vectors.classes
    decided = find_decisions(settings.decisions, index, file_facts, session, classes=classes)
    if vectors is not None:
        dataset = _with_vectors(index, vectors, planned.recipe, file_facts, decided)
    else:
        scratch = run.checkpoints / "pixels"
        dataset = _decode(
            index, file_facts, settings, decoder, session, scratch=scratch, planned=planned, decided=decided
        )
        run.require_free_space(_bytes_needed(dataset, settings))
    dataset = replace(dataset, groups=_groups_of_column(dataset, settings))
    _say_what_follows(dataset, settings, session)
    record = RunRecord(
        identity,
        version=__version__,
        recipe=recipe_to_document(dataset.recipe),
        location=location_of_data(settings),
    )
    run.begin(record, index, dataset.decoded.file_facts, fresh=state == "fresh")
    return dataset, record


def _require_memory(
    index: Index, file_facts: FileFacts, vectors: OwnVectors | None, recipe: Recipe, session: TrainingSession
) -> None:
    """Compare what the run will hold in memory with what is free."""
    classes, on_cpu = len(index.column("labels").distinct()), session.device.type == "cpu"
    weights = 0 if recipe.frozen else weight_bytes(recipe, classes)
    width = vectors.values.shape[1] if vectors is not None and vectors.kind == "embeddings" else 0

    def parts(rows: int) -> dict[str, int]:
        found = memory_parts(recipe, rows=rows, classes=classes, width=width, weight_bytes=weights, on_cpu=on_cpu)
        there = {"imports and blocks": IMPORTS, "features": rows * width * 4}  # is in memory by now
        return {name: size - there.get(name, 0) for name, size in found.items()}

    require_memory(parts, int(file_facts.readable.sum()), session)


def decode_dataset(
    index: Index, settings: ScanSettings, decoder: Decoder, session: TrainingSession, *, scratch: Path
) -> Dataset:
    """Return the rows, decoded, with the recipe to train on them, for a training that is no run."""
    file_facts = decoder.read(index, _size_of(settings, session))
    planned = _plan(index, file_facts, settings, session)
    return _decode(index, file_facts, settings, decoder, session, scratch=scratch, planned=planned, decided={})


def _groups_of_column(dataset: Dataset, settings: ScanSettings) -> Ints | None:
    """Return the number of each readable row's value in the column of --keep-together, or None."""
    column = settings.keep_together
    if column in (None, NOTHING_TOGETHER):
        return None
    if not dataset.recipe.frozen and dataset.compared_heads is None:
        raise UsageError("--keep-together: only heads on frozen features have folds.", "Leave it out.")
    if not dataset.recipe.epochs:
        raise UsageError("--keep-together: predictions are not trained on.", "Leave it out.")
    return column_codes(dataset.index, str(column))[dataset.decoded.rows]


def _size_of(settings: ScanSettings, session: TrainingSession) -> Callable[[Ints], int]:
    return lambda sides: image_size(settings.training, longest_sides=sides, device=session.device.type)


def _plan(index: Index, file_facts: FileFacts, settings: ScanSettings, session: TrainingSession) -> _Plan:
    """Plan the training of the readable rows."""
    rows, device = int(file_facts.readable.sum()), session.device.type
    classes = len(index.column("labels").take(np.flatnonzero(file_facts.readable)).distinct())
    sides, options = file_facts.longest_sides, settings.training
    recipe = plan(options, rows=rows, classes=classes, longest_sides=sides, device=device)
    weights, _ = choose_weights(options, device=device)
    file = weights_file(weights, recipe.backbone)
    heads = plan_compared_heads(options, rows=rows, classes=classes, longest_sides=sides, device=device)
    if heads is not None:
        heads = with_weights_hash(heads, weights_file(heads.weights, heads.backbone))
    return _Plan(with_weights_hash(recipe, file), file, heads)


def _decode(
    index: Index,
    file_facts: FileFacts,
    settings: ScanSettings,
    decoder: Decoder,
    session: TrainingSession,
    *,
    scratch: Path,
    planned: _Plan,
    decided: Decided,
) -> Dataset:
    """Decode every image at the size of the recipe.

    The recipe is planned from the readable images: if decoding finds further unreadable ones, it is planned again.
    """
    size = planned.recipe.image_size
    decoded = decoder.decode(index, file_facts, size=size, scratch=scratch)
    if len(decoded.rows) < file_facts.readable.sum():
        planned = _plan(index, decoded.file_facts, settings, session)
        if planned.recipe.image_size != size:
            size = planned.recipe.image_size
            decoded = decoder.decode(index, decoded.file_facts, size=size, scratch=scratch)
    warn_of_unreadable(index, decoded.file_facts, session)
    classes = sorted(index.column("labels").take(decoded.rows).distinct(), key=natural_key)
    if len(classes) < 2:
        shutil.rmtree(scratch, ignore_errors=True)
        raise InputError(
            f"{index.root}: {len(decoded.rows)} of {len(index)} images can be read, in {len(classes)} classes.",
            "A scan needs at least two classes. Is --root right?",
        )
    if decoded.reused:
        session.note(f"Pixels at {size} px were in the cache.")
    if planned.weights is not None and own_weights(settings) is not None:
        require_fitting(planned.weights, planned.recipe)
    codes = _codes_to_learn(index, decoded.rows, classes, decided)
    fitted, message = fit_beta(planned.recipe, np.bincount(codes, minlength=len(classes)), classes)
    if message is not None:
        (session.note if fitted != planned.recipe else session.warn)(message)
    return Dataset(index, decoded, classes, codes, fitted, planned.weights, planned.compared_heads, decided)


def _with_vectors(
    index: Index, vectors: OwnVectors, recipe: Recipe, file_facts: FileFacts, decided: Decided
) -> Dataset:
    """Return rows that have vectors instead of pixels."""
    if len(vectors.classes) < 2:
        raise InputError("A scan needs at least two classes.")
    rows = np.arange(len(index), dtype=np.int64)
    decoded = Decoded(file_facts, rows, NoPixels(len(index)), reused=True)
    codes = _codes_to_learn(index, rows, vectors.classes, decided)
    return Dataset(index, decoded, vectors.classes, codes, recipe, None, None, decided, vectors)


def _codes_to_learn(index: Index, rows: Ints, classes: list[str], decided: Decided) -> Ints:
    """Return the labels of some rows as positions in `classes`, with what people decided in place of the given ones."""
    codes = index.column("labels").codes(classes)
    for row, decision in decided.items():
        if decision.label in classes:
            codes[row] = classes.index(str(decision.label))
    return codes[rows]


def _say_what_follows(dataset: Dataset, settings: ScanSettings, session: TrainingSession) -> None:
    """Say how the rows will be trained, and what a network costs whose speed nobody knows beforehand."""
    recipe, options = dataset.recipe, settings.training
    if not recipe.epochs:
        return  # predictions: nothing is trained
    session.note(introduce(recipe, options, compared_heads=dataset.compared_heads))
    session.note(f"{options.preset}: {describe(recipe, session.processes)}")
    if is_timm(recipe.backbone):
        rows, classes = len(dataset.codes), len(dataset.classes)
        cost = estimate(recipe, rows=rows, classes=classes, processes=session.processes)
        session.note(
            f"{recipe.backbone} at {recipe.image_size} px: {cost.images_per_second:,.0f} images/s here, so at most "
            f"about {cost.seconds / 60:,.1f} min, unless its features are in the cache. A smaller --image-size is "
            "faster."
        )


def warn_of_unreadable(index: Index, file_facts: FileFacts, session: Session) -> None:
    """Name the images that cannot be read, with the reason: the first ones, then a count."""
    bad = np.flatnonzero(~file_facts.readable).tolist()
    for row in bad[:UNREADABLE_SHOWN]:
        session.warn(f"{index.paths[row] or index.ids[row]}: {file_facts.status[row]}")
    if len(bad) > UNREADABLE_SHOWN:
        session.warn(f"… and {len(bad) - UNREADABLE_SHOWN} more that cannot be read; the report names them all.")


def _bytes_needed(dataset: Dataset, settings: ScanSettings) -> int:
    """Estimate the largest size of the run folder: two checkpoints and a third being written, or the results."""
    rows, classes = len(dataset.codes), len(dataset.classes)
    if isinstance(dataset.recipe, HeadRecipe):
        features = 0 if settings.pixels.cache else rows * feature_bytes(dataset.recipe)  # with a cache they are there
        return len(dataset.index) * (500 + classes * 4) + features + 2**20
    # Weights: model, average, momentum, each also stashed. Rows: two sums of probabilities, then the margin history.
    checkpoint = 6 * weight_bytes(dataset.recipe, classes) + rows * (classes * 16 + 9)
    checkpoint += rows * 4 * max(0, dataset.recipe.epochs - dataset.recipe.sieve_start + 2)
    return 3 * checkpoint + len(dataset.index) * 500 + 2**20
