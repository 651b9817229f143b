"""`noisesieve scan --dry-run`: what a scan would do, and what it would cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch

from noisesieve.commands._dataset import validate_settings
from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.files import Document
from noisesieve.core.progress import Session
from noisesieve.core.records import FileFacts
from noisesieve.learn.cost import CostEstimate, estimate
from noisesieve.learn.describe import describe
from noisesieve.learn.distributed import Processes
from noisesieve.learn.frozen.features import depth_files, feature_folder
from noisesieve.learn.networks.pretrained import IMAGENET, statistics_of, weights_file, with_weights_hash
from noisesieve.learn.networks.timm_net import is_timm
from noisesieve.learn.plan import choose_weights, plan
from noisesieve.learn.recipes import HeadRecipe, Recipe, recipe_to_document
from noisesieve.pixels.decoder import Decoder
from noisesieve.pixels.pixel_cache import default_cache_dir
from noisesieve.report.choose_folder import output_folder
from noisesieve.sources.containers import read_index

SAMPLED = 2000  # images whose headers are read


def _cached_features(recipe: Recipe, settings: ScanSettings, sample: FileFacts, device: torch.device) -> float:
    """Return which share of the sampled images has its features in the cache. Nothing is downloaded to find out."""
    statistics = statistics_of(recipe.weights, recipe.backbone)
    weights, _ = choose_weights(settings.training, device=device.type)
    if not isinstance(recipe, HeadRecipe) or weights == IMAGENET or is_timm(weights) or statistics is None:
        return 0.0
    recipe = with_weights_hash(recipe, weights_file(weights, recipe.backbone))
    if not settings.pixels.cache:
        return 0.0
    root = settings.pixels.cache_dir or default_cache_dir()
    mean, std = (torch.tensor(values).tolist() for values in statistics)  # in float32, as they are used
    hashes = sample.hashes.take(np.flatnonzero(sample.readable))
    files = depth_files(feature_folder(root, recipe, settings.pixels, device, (mean, std)), recipe)
    missing = np.any([file.missing(hashes) for file in files], axis=0)
    return 1.0 - float(missing.mean()) if len(missing) else 0.0


@dataclass(frozen=True)
class ScanPlan:
    """What a scan would do, and what it would cost."""

    examples: int
    classes: int
    device: str
    threads: int
    plan: str
    recipe: Recipe
    estimate: CostEstimate
    streamed: bool
    output: str

    def to_document(self) -> Document:
        """Return the JSON document."""
        return {**asdict(self), "recipe": recipe_to_document(self.recipe)}


def dry_run(settings: ScanSettings, *, session: Session | None = None) -> ScanPlan:
    """Return what `scan` would choose and what it would cost. Reads up to 2,000 image headers, trains nothing."""
    validate_settings(settings)
    if settings.has_vectors:
        raise UsageError("--dry-run plans a scan of images; vectors take seconds.", "Leave it out.")
    processes = Processes.join(settings.device)
    index = read_index(settings.source)
    sample = np.unique(np.linspace(0, len(index) - 1, min(len(index), SAMPLED)).round().astype(np.int64))
    session = session or Session()
    session.note_all(index.notes)
    session.warn_all(index.warnings)
    with Decoder(settings.pixels, session) as decoder:
        file_facts = decoder.inspect(index, rows=sample)
    if lost := int((~file_facts.readable).sum()):
        row = int(np.flatnonzero(~file_facts.readable)[0])
        first = f"{index.paths[sample[row]] or index.ids[sample[row]]}: {file_facts.status[row]}"
        if lost == len(sample):
            raise InputError(f"{settings.source.path}: no image can be read ({first}).", "Is --root right?")
        session.warn(f"{lost:,} of {len(sample):,} sampled images cannot be read, such as {first}.")
    classes = len(index.column("labels").distinct())
    sides, device = file_facts.longest_sides, processes.device
    recipe = plan(settings.training, rows=len(index), classes=classes, longest_sides=sides, device=device.type)
    cached = _cached_features(recipe, settings, file_facts, device)
    cost = estimate(recipe, rows=len(index), classes=classes, processes=processes, cached_features=cached)
    return ScanPlan(
        examples=len(index),
        classes=classes,
        device=device.type,
        threads=torch.get_num_threads(),
        plan=f"{settings.training.preset}: {describe(recipe, processes)}",
        recipe=recipe,
        estimate=cost,
        streamed=cost.cache_bytes > settings.pixels.cache_budget,
        output=str(output_folder(settings.output, index, Session())),
    )
