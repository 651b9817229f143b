"""`noisesieve scan --dry-run`: what a scan would do, and what it would cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from noisesieve import pixels, sources
from noisesieve.commands._prepare import longest_sides, validate_settings
from noisesieve.core.progress import Session
from noisesieve.core.recipes import recipe_to_document
from noisesieve.core.settings import ScanSettings
from noisesieve.learn.cost import estimate
from noisesieve.learn.distributed import Processes
from noisesieve.learn.plan import describe, plan
from noisesieve.report import output_folder

SAMPLED = 2000  # images whose headers are read


def dry_run(settings: ScanSettings, *, session: Session | None = None) -> dict[str, Any]:
    """Return what `scan` would choose and what it would cost. Reads up to 2,000 image headers, trains nothing."""
    validate_settings(settings)
    processes = Processes.join(settings.device)
    index = sources.read(settings.source)
    sample = np.unique(np.linspace(0, len(index) - 1, min(len(index), SAMPLED)).round().astype(np.int64))
    session = session or Session()
    for note in index.notes:
        session.note(note)
    file_facts = pixels.inspect_files(index, settings.pixels, session, rows=sample)
    if lost := int((~file_facts.readable).sum()):
        session.warn(f"{lost:,} of {len(sample):,} sampled images cannot be read.")
    classes = len(set(index.labels))
    sides, device = longest_sides(file_facts), processes.device
    recipe = plan(settings.training, rows=len(index), classes=classes, longest_sides=sides, device=device.type)
    cost = estimate(recipe, rows=len(index), classes=classes, device=device)
    return {
        "examples": len(index),
        "classes": classes,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "plan": f"{settings.training.preset}: {describe(recipe, processes)}",
        "recipe": recipe_to_document(recipe),
        "estimate": asdict(cost),
        "streamed": cost.cache_bytes > settings.pixels.cache_budget,
        "output": str(output_folder(settings.output, index, Session())),
    }
