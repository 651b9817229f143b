"""Preflight: what is odd about a dataset before anything is trained, and what a scan would cost here."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from noisesieve import pixels, sources
from noisesieve.errors import InputError
from noisesieve.learn.plan import describe, estimate, image_size, plan
from noisesieve.learn.world import World
from noisesieve.names import natural_key
from noisesieve.pixels.alike import near_duplicates
from noisesieve.records import Index, Ints, Looks
from noisesieve.report.schema import LOW_EVIDENCE
from noisesieve.settings import ScanSettings
from noisesieve.watch import Watcher

SHOWN = 10  # examples of a finding
FAR = 6.0  # deviations from the median that make a size odd


@dataclass(frozen=True)
class Finding:
    """Something a user should look at; `wrong` where it will spoil results."""

    kind: str
    text: str
    count: int
    wrong: bool
    examples: list[str] = field(default_factory=list)


def examine(settings: ScanSettings, *, watcher: Watcher, pause: Callable[[], None]) -> dict[str, Any]:
    """Look at every file and decode every image once; train nothing."""
    world = World.join(settings.device)
    index = sources.read(settings.source, least_classes=1)
    looks = pixels.look(index, settings.pixels, watcher, pause=pause)
    device = world.device.type
    size = image_size(settings.wishes, longest_sides=_sides(looks), device=device)
    with tempfile.TemporaryDirectory() as scratch:
        decoded = pixels.decode(index, looks, settings.pixels, watcher, size=size, scratch=Path(scratch), pause=pause)
        if len(decoded.rows) == 0:
            raise InputError(f"{index.root}: no image can be read ({decoded.looks.status[0]}).", "Is --root right?")
        pairs = near_duplicates(decoded.pixels, watcher, pause)
    looks, rows = decoded.looks, decoded.rows
    alike = [(int(rows[a]), int(rows[b])) for a, b in pairs if looks.sha256[rows[a]] != looks.sha256[rows[b]]]
    found = [
        *_unreadable(index, looks),
        *_passed_over(index),
        *_classes(index, looks),
        *_same(index, looks),
        *_alike(index, alike),
        *_sizes(index, looks),
    ]
    classes = len({index.labels[row] for row in rows.tolist()})
    return {
        "data": str(settings.source.path),
        "examples": len(index),
        "readable": len(rows),
        "classes": classes,
        "findings": [asdict(finding) for finding in found],
        "wrong": sum(finding.wrong for finding in found),
        **_cost(settings, looks, len(rows), classes, world),
    }


def _cost(settings: ScanSettings, looks: Looks, rows: int, classes: int, world: World) -> dict[str, Any]:
    if classes < 2:
        return {"plan": None, "estimate": None}
    recipe = plan(settings.wishes, rows=rows, classes=classes, longest_sides=_sides(looks), device=world.device.type)
    cost = estimate(recipe, rows=rows, classes=classes, device=world.device)
    return {"plan": f"{settings.wishes.preset}: {describe(recipe, world)}", "estimate": asdict(cost)}


def _sides(looks: Looks) -> Ints:
    return np.maximum(looks.width, looks.height)[looks.readable]


def _finding(kind: str, text: str, items: Iterable[str], *, wrong: bool) -> list[Finding]:
    listed = list(items)
    return [Finding(kind, text, len(listed), wrong, listed[:SHOWN])] if listed else []


def _unreadable(index: Index, looks: Looks) -> list[Finding]:
    bad = (f"{index.ids[row]}: {looks.status[row]}" for row in np.flatnonzero(~looks.readable).tolist())
    return _finding("unreadable", "images that cannot be read", bad, wrong=True)


def _passed_over(index: Index) -> list[Finding]:
    return _finding("passed over", "what a scan passes over", index.notes, wrong=False)


def _classes(index: Index, looks: Looks) -> list[Finding]:
    readable = looks.readable
    counts: dict[str, int] = {}
    for label, ok in zip(index.labels, readable.tolist(), strict=True):
        counts[label] = counts.get(label, 0) + ok
    names = sorted(counts, key=natural_key)
    few = (f"{label} ({counts[label]})" for label in names if counts[label] < LOW_EVIDENCE)
    alike: dict[str, list[str]] = {}
    for label in names:
        alike.setdefault(_plain(label), []).append(label)
    same = (" = ".join(map(repr, group)) for group in alike.values() if len(group) > 1)
    one = ["a sieve needs two classes at least"] if len(names) < 2 else []
    return [
        *_finding("one class", "only one class", one, wrong=True),
        *_finding("few examples", f"classes of fewer than {LOW_EVIDENCE} readable images", few, wrong=True),
        *_finding("similar names", "classes that differ only in case, spaces or plural", same, wrong=True),
    ]


def _plain(label: str) -> str:
    """A class name without what people spell differently: case, separators, a plural's s."""
    words = re.sub(r"[\s_\-]+", " ", label.casefold()).strip()
    for ending, instead in (("ies", "y"), ("ses", "s"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("s", "")):
        if len(words) > max(3, len(ending) + 1) and words.endswith(ending) and not words.endswith("ss"):
            return words[: -len(ending)] + instead
    return words


def _same(index: Index, looks: Looks) -> list[Finding]:
    groups: dict[str, list[int]] = {}
    for row, sha in enumerate(looks.sha256):
        if sha is not None:
            groups.setdefault(sha, []).append(row)
    several = [group for group in groups.values() if len(group) > 1]
    torn = [group for group in several if len({index.labels[row] for row in group}) > 1]
    plain = [group for group in several if len({index.labels[row] for row in group}) == 1]
    return [
        *_finding("two labels", "images under two labels", (_named(index, group) for group in torn), wrong=True),
        *_finding("duplicates", "images more than once", (_named(index, group) for group in plain), wrong=False),
    ]


def _alike(index: Index, pairs: list[tuple[int, int]]) -> list[Finding]:
    torn = [pair for pair in pairs if index.labels[pair[0]] != index.labels[pair[1]]]
    plain = [pair for pair in pairs if index.labels[pair[0]] == index.labels[pair[1]]]
    return [
        *_finding(
            "alike, two labels",
            "pairs of images that look alike under two labels",
            (_named(index, pair) for pair in torn),
            wrong=True,
        ),
        *_finding("alike", "pairs of images that look alike", (_named(index, pair) for pair in plain), wrong=False),
    ]


def _named(index: Index, rows: Iterable[int]) -> str:
    return " = ".join(f"{index.ids[row]} ({index.labels[row]})" for row in list(rows)[:4])


def _sizes(index: Index, looks: Looks) -> list[Finding]:
    rows = np.flatnonzero(looks.readable)
    wide, high = looks.width[rows].astype(float), looks.height[rows].astype(float)
    odd_size = _outliers(np.log(np.maximum(wide, high)))
    odd_shape = _outliers(np.log(wide / high))

    def shown(mask: Any) -> Iterable[str]:
        return (f"{index.ids[row]}: {looks.width[row]}x{looks.height[row]}" for row in rows[mask].tolist())

    return [
        *_finding("sizes", "images far larger or smaller than most", shown(odd_size), wrong=False),
        *_finding("shapes", "images far longer or wider than most", shown(odd_shape), wrong=False),
    ]


def _outliers(values: Any) -> Any:
    """Which values lie far from the median; at least a factor of two, however alike the others are."""
    gaps = np.abs(values - np.median(values))
    return gaps > max(FAR * 1.4826 * float(np.median(gaps)), np.log(2.0))
