"""Flat options, as the command line and the Python API have them → settings. Values without a meaning are refused."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from noisesieve.errors import UsageError
from noisesieve.settings import (
    DEVICES,
    PRESETS,
    PROBABILITIES,
    SCORE_PASSES,
    Limit,
    PixelSettings,
    ScanSettings,
    SourceSettings,
    Wishes,
)


def scan_settings(path: str | Path, **options: Any) -> ScanSettings:
    """Settings from flat options, as the command line and the Python API have them. Unknown names are refused."""
    groups: dict[str, Any] = {"source": SourceSettings, "pixels": PixelSettings, "wishes": Wishes}
    sorted_options: dict[str, dict[str, Any]] = {"source": {"path": Path(path)}, "pixels": {}, "wishes": {}}
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
    made = {group: kind(**sorted_options[group]) for group, kind in groups.items()}
    return _checked(ScanSettings(**made, **own))


def _checked(settings: ScanSettings) -> ScanSettings:
    """Refuse values that cannot mean anything."""
    wishes = settings.wishes
    choices = (
        ("--preset", wishes.preset, PRESETS),
        ("--score-pass", wishes.score_pass, SCORE_PASSES),
        ("--device", settings.device, DEVICES),
        ("--probabilities", settings.probabilities, PROBABILITIES),
    )
    for option, value, allowed in choices:
        if value not in allowed:
            raise UsageError(f"{option} {value}: unknown.", f"Choose {', '.join(allowed)}.")
    for option, number, low, high in (
        ("--loop-eps", wishes.loop_eps, 0.0, 1.0),
        ("--sieve-eps", wishes.sieve_eps, 0.0, 1.0),
        ("--lr", wishes.lr, 0.0, 1e38),
        ("--beta", wishes.beta, -1e-300, 1e6),
    ):
        if number is not None and not (isinstance(number, int | float) and low < number <= high):
            raise UsageError(f"{option} {number}: must be a number above {max(low, 0.0):g}, at most {high:g}.")
    if wishes.mixup is not None and not (isinstance(wishes.mixup, int | float) and 0 <= wishes.mixup <= 100):
        raise UsageError(f"--mixup {wishes.mixup}: must be a number from 0 (no mixing) to 100.")
    for option, count, least, most in (
        ("--epoch-steps", wishes.epoch_steps, 1, 10**9),
        ("--image-size", wishes.image_size, 16, 1024),
        ("--epochs", wishes.epochs, 2, 10**6),
        ("--warmup-epochs", wishes.warmup_epochs, 0, 10**6),
        ("--settle-epochs", wishes.settle_epochs, 0, 10**6),
        ("--ramp-epochs", wishes.ramp_epochs, 0, 10**6),
        ("--sieve-start", wishes.sieve_start, 1, 10**6),
        ("--batch-size", wishes.batch_size, 2, 10**6),
        ("--limit", settings.source.limit, 2, 10**12),
        ("--workers", settings.pixels.workers, 1, 1024),
        ("--max-pixels", settings.pixels.max_pixels, 1, 2**40),
        ("--cache-budget", settings.pixels.cache_budget, 0, 2**60),
    ):
        if count is not None and not (isinstance(count, int) and least <= count <= most):
            raise UsageError(f"{option} {count}: must be a whole number from {least} to {most}.")
    if wishes.weights is not None and (not wishes.weights or _looks_like_a_keyword(wishes.weights)):
        raise UsageError(
            f"--weights {wishes.weights!r}: not the name of a file.", "Give it another name, or a keyword."
        )
    if wishes.freeze and wishes.preset != "auto":
        raise UsageError(
            f"--freeze: not for --preset {wishes.preset}, which trains the whole network.", "Leave one out."
        )
    if wishes.freeze and wishes.weights == "none":
        raise UsageError(
            "--freeze with --weights none: there is nothing to freeze.", "Choose lite0, imagenet or a file."
        )
    if wishes.freeze and (wishes.mixup or wishes.balanced or wishes.epoch_steps):
        raise UsageError("--freeze: has no --mixup, --balanced or --epoch-steps.", "Leave them out.")
    if wishes.freeze and (wishes.score_pass != "eval" or wishes.settle_epochs is not None):
        raise UsageError("--freeze: has neither --score-pass nor --settle-epochs.", "Leave them out.")
    if not (isinstance(wishes.seed, int) and 0 <= wishes.seed < 2**63):
        raise UsageError(f"--seed {wishes.seed}: must be a whole number from 0 to 2**63 - 1.")
    return settings


def _looks_like_a_keyword(weights: str) -> bool:
    """A file called `none`, `imagenet` or `lite0`: later commands know it by its name alone."""
    return Path(weights).name in ("none", "imagenet", "lite0") and Path(weights).name != weights


def limit(text: str, option: str) -> Limit:
    """A limit as people write it."""
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
