"""Flat options, as in the command line and the Python API → settings. Values outside their bounds are refused."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from noisesieve.core.errors import UsageError
from noisesieve.core.settings import (
    DEVICES,
    PRESETS,
    PROBABILITIES,
    SCORE_PASSES,
    Limit,
    PixelSettings,
    ScanSettings,
    SourceSettings,
    TrainingOptions,
)


def scan_settings(path: str | Path, **options: Any) -> ScanSettings:
    """Return the settings for flat options such as `epochs=20`. Unknown names are refused."""
    groups: dict[str, Any] = {"source": SourceSettings, "pixels": PixelSettings, "training": TrainingOptions}
    sorted_options: dict[str, dict[str, Any]] = {"source": {"path": Path(path)}, "pixels": {}, "training": {}}
    own: dict[str, Any] = {}
    for name, value in options.items():
        for group, kind in groups.items():
            if name in {field.name for field in fields(kind)} - {"path"}:
                sorted_options[group][name] = value
                break
        else:
            if name not in {field.name for field in fields(ScanSettings)} - groups.keys():
                raise UsageError(f"scan has no option {name!r}.")
            own[name] = value
    for group, name in (("source", "root"), ("pixels", "cache_dir")):
        if sorted_options[group].get(name) is not None:
            sorted_options[group][name] = Path(sorted_options[group][name])
    if own.get("output") is not None:
        if not str(own["output"]):
            raise UsageError("--output is empty.", "Name a folder, or leave it out.")
        own["output"] = Path(own["output"])
    sorted_options["source"].setdefault("limit_seed", options.get("seed", 0))
    grouped = {group: kind(**sorted_options[group]) for group, kind in groups.items()}
    return _checked(ScanSettings(**grouped, **own))


def _checked(settings: ScanSettings) -> ScanSettings:
    """Refuse values outside their bounds, and options that exclude each other."""
    options = settings.training
    choices = (
        ("--preset", options.preset, PRESETS),
        ("--score-pass", options.score_pass, SCORE_PASSES),
        ("--device", settings.device, DEVICES),
        ("--probabilities", settings.probabilities, PROBABILITIES),
    )
    for option, value, allowed in choices:
        if value not in allowed:
            raise UsageError(f"{option} {value}: unknown.", f"Choose {', '.join(allowed)}.")
    for option, number, low, high in (
        ("--loop-eps", options.loop_eps, 0.0, 1.0),
        ("--sieve-eps", options.sieve_eps, 0.0, 1.0),
        ("--lr", options.lr, 0.0, 1e38),
        ("--beta", options.beta, -1e-300, 1e6),
    ):
        if number is not None and not (isinstance(number, int | float) and low < number <= high):
            raise UsageError(f"{option} {number}: must be a number between {max(low, 0.0):g} and {high:g}.")
    if options.mixup is not None and not (isinstance(options.mixup, int | float) and 0 <= options.mixup <= 100):
        raise UsageError(f"--mixup {options.mixup}: must be a number from 0 (no mixing) to 100.")
    for option, count, least, most in (
        ("--epoch-steps", options.epoch_steps, 1, 10**9),
        ("--image-size", options.image_size, 16, 1024),
        ("--epochs", options.epochs, 2, 10**6),
        ("--warmup-epochs", options.warmup_epochs, 0, 10**6),
        ("--settle-epochs", options.settle_epochs, 0, 10**6),
        ("--ramp-epochs", options.ramp_epochs, 0, 10**6),
        ("--sieve-start", options.sieve_start, 1, 10**6),
        ("--batch-size", options.batch_size, 2, 10**6),
        ("--limit", settings.source.limit, 2, 10**12),
        ("--workers", settings.pixels.workers, 1, 1024),
        ("--max-pixels", settings.pixels.max_pixels, 1, 2**40),
        ("--cache-budget", settings.pixels.cache_budget, 0, 2**60),
    ):
        if count is not None and not (isinstance(count, int) and least <= count <= most):
            raise UsageError(f"{option} {count}: must be a whole number from {least} to {most}.")
    if options.weights is not None and (not options.weights or _looks_like_a_keyword(options.weights)):
        raise UsageError(
            f"--weights {options.weights!r}: empty, or a file with the name of a keyword.",
            "Rename it, or pass a keyword.",
        )
    if options.freeze and options.preset != "auto":
        raise UsageError(f"--freeze: --preset {options.preset} trains the whole network.", "Leave one of them out.")
    if options.freeze and options.weights == "none":
        raise UsageError(
            "--freeze with --weights none: there are no pretrained weights to freeze.",
            "Choose lite0, imagenet or a file.",
        )
    if options.freeze and (options.mixup or options.balanced or options.epoch_steps):
        raise UsageError("--freeze: does not support --mixup, --balanced or --epoch-steps.", "Leave them out.")
    if options.freeze and (options.score_pass != "eval" or options.settle_epochs is not None):
        raise UsageError("--freeze: does not support --score-pass or --settle-epochs.", "Leave them out.")
    if not (isinstance(options.seed, int) and 0 <= options.seed < 2**63):
        raise UsageError(f"--seed {options.seed}: must be a whole number from 0 to 2**63 - 1.")
    return settings


def _looks_like_a_keyword(weights: str) -> bool:
    """Return True for a file called `none`, `imagenet` or `lite0`: later commands store only its name."""
    return Path(weights).name in ("none", "imagenet", "lite0") and Path(weights).name != weights


def parse_limit(text: str, option: str) -> Limit:
    """Parse a limit: a share (5%, 0.05) or a count (12)."""
    number, percent = (text[:-1], True) if text.endswith("%") else (text, False)
    try:
        value = Fraction(number)
    except (ValueError, ZeroDivisionError):
        value = Fraction(-1)
    is_share = percent or not number.isdecimal()
    value = value / 100 if percent else value
    if not (0 <= value <= 1 if is_share else value >= 0):
        raise UsageError(f"{option} {text}: neither a share (5%, 0.05) nor a count (12).")
    return Limit(value, is_share, text)
