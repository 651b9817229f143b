"""The options and output of `noisesieve inject`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from noisesieve.cli import options as o
from noisesieve.cli.signals import running
from noisesieve.cli.terminal import console, print_json, print_line, results
from noisesieve.commands.measure_settings import InjectSettings
from noisesieve.core.options import build_settings

if TYPE_CHECKING:
    from noisesieve.commands.inject import PlantedNoise

PAIRS = 15


@dataclass(frozen=True)
class FlipCount:
    """How many labels were flipped from one class to another."""

    true: str
    given: str
    count: int


@dataclass(frozen=True)
class InjectedNoise:
    """What was planted, and the command that scans it."""

    output: str
    examples: int
    flips: int
    noise: str
    rate: float
    expected_rate: float
    planted_rate: float
    unreadable: int | None  # None: the images were not read
    seed: int
    confusions: list[FlipCount]
    scan: str


@o.with_options(InjectSettings, without=("trusted_column", "cache_budget", "max_pixels"))
def inject(
    data: o.Data,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """Plant known label errors: write a table that `scan` reads, with the right labels in `true_label`.

    The dataset itself is not changed. Instance noise depends on the image: the paper's Algorithm 1. `instance` scales
    the pixels to zero mean and unit variance first, so that flips spread over the classes; `instance-raw` multiplies
    the raw bytes, as the authors' code does, where most flips go to one class.

    Example: noisesieve inject ./dataset --noise instance --rate 0.2 -o noisy.csv
    """
    settings = build_settings(InjectSettings, {"path": data, "limit_seed": options.get("seed", 0), **options})
    from noisesieve.commands.inject import inject as run

    with running(quiet) as session:
        planted, needed_root = run(settings, session=session)
    injected = _summarize(settings, planted, needed_root)
    with results():
        if as_json:
            print_json(injected)
        elif quiet:
            print_line(settings.output)
        else:
            _show(injected, planted)


def _summarize(settings: InjectSettings, planted: PlantedNoise, root: Path | None) -> InjectedNoise:
    flips = int(planted.flipped.sum())
    pairs = [
        FlipCount(planted.classes[i], planted.classes[j], int(planted.counts[i, j]))
        for i, j in zip(*planted.counts.nonzero(), strict=True)
        if i != j
    ]
    source = settings.source
    wanted = (("--root", root), ("--image-column", source.image_column), ("--id-column", source.id_column))
    name = str(settings.output)
    command = ["noisesieve", "scan", f"./{name}" if name.startswith("-") else name]
    command += [word for name, value in wanted if value is not None for word in (name, str(value))]
    command += ["--allow-outside"] if source.allow_outside else []
    return InjectedNoise(
        output=str(settings.output),
        examples=len(planted.labels),
        flips=flips,
        noise=settings.noise,
        rate=settings.rate,
        expected_rate=planted.expected_rate,
        planted_rate=flips / len(planted.labels),
        unreadable=planted.unreadable,
        seed=settings.seed,
        confusions=sorted(pairs, key=lambda pair: -pair.count),
        scan=shlex.join(command),
    )


def _show(injected: InjectedNoise, planted: PlantedNoise) -> None:
    from noisesieve.cli.terminal import plain_table, plain_text

    out = console(stderr=False)
    out.print(
        plain_text(f"{injected.flips:,} of {injected.examples:,} labels flipped: {injected.planted_rate:.2%}", "bold")
    )
    if injected.noise.startswith("instance"):
        out.print(
            plain_text(
                f"Each image has its own flip rate, normal around {injected.rate:g} and truncated to [0, 1]: "
                f"their mean is {injected.expected_rate:.4f}, not {injected.rate:g}."
            )
        )
    if injected.unreadable:
        out.print(plain_text(f"{injected.unreadable:,} images cannot be read and keep their label."))
    out.print()
    longest = max(12, *(len(name) for name in planted.classes))
    if longest + sum(max(len(name), 4) + 2 for name in planted.classes) <= out.width - 2:
        table = plain_table()
        table.add_column("true \\ given", overflow="fold")
        for name in planted.classes:
            table.add_column(plain_text(name), justify="right")
        for i, name in enumerate(planted.classes):
            counts = [f"{count:,}" if i != j else "·" for j, count in enumerate(planted.counts[i].tolist())]
            table.add_row(plain_text(name), *counts)
    else:
        table = plain_table()
        for heading in ("true", "given"):
            table.add_column(heading, overflow="fold")
        table.add_column("flips", justify="right")
        for pair in injected.confusions[:PAIRS]:
            table.add_row(plain_text(pair.true), plain_text(pair.given), f"{pair.count:,}")
        if len(injected.confusions) > PAIRS:
            table.caption = f"and {len(injected.confusions) - PAIRS:,} more pairs with --json"
    out.print(table)
    out.print()
    out.print(plain_text(f"Written to {injected.output}. Next:"))
    out.print(plain_text(f"  {injected.scan}"), soft_wrap=True)
    out.print(plain_text("and then `noisesieve evaluate` on its run folder. To compare with the peers:"))
    out.print(plain_text(f"  {injected.scan.replace(' scan ', ' bench ', 1)}"), soft_wrap=True)
