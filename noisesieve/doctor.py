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
from noisesieve.dataset import sides
from noisesieve.errors import InputError, UsageError
from noisesieve.learn.cost import estimate
from noisesieve.learn.plan import describe, image_size, plan
from noisesieve.learn.world import World, device_problem
from noisesieve.names import natural_key
from noisesieve.pixels.alike import near_duplicates
from noisesieve.records import Index, Looks
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
    if problem := device_problem(settings.device):
        raise UsageError(problem, "Leave --device out, or choose cpu.")
    world = World.join(settings.device)
    index = sources.read(settings.source, least_classes=1)
    looks = pixels.look(index, settings.pixels, watcher, pause=pause)
    device = world.device.type
    size = image_size(settings.wishes, longest_sides=sides(looks), device=device)
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
    recipe = plan(settings.wishes, rows=rows, classes=classes, longest_sides=sides(looks), device=world.device.type)
    cost = estimate(recipe, rows=rows, classes=classes, device=world.device)
    return {"plan": f"{settings.wishes.preset}: {describe(recipe, world)}", "estimate": asdict(cost)}


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
    same = (" = ".join(map(repr, group)) for group in _same_names(names))
    one = ["a sieve needs two classes at least"] if len(names) < 2 else []
    return [
        *_finding("one class", "only one class", one, wrong=True),
        *_finding("few examples", f"classes of fewer than {LOW_EVIDENCE} readable images", few, wrong=True),
        *_finding("similar names", "classes that differ only in case, spaces or plural", same, wrong=True),
    ]


def _same_names(names: list[str]) -> list[list[str]]:
    """Classes that are one name in different spellings: case, separators, singular and plural."""
    groups: dict[str, list[str]] = {}
    for name in names:
        forms = spellings(name)
        found = next((form for form in sorted(forms) if form in groups), None)
        group = groups[found] if found is not None else []
        group.append(name)
        for form in forms:
            groups.setdefault(form, group)
    unique = {id(group): group for group in groups.values()}
    return [group for group in unique.values() if len(group) > 1]


def spellings(name: str) -> set[str]:
    """A class name and its possible singulars, without case and separators between words."""
    words = re.sub(r"(?<=\w)[\s_\-]+(?=\w)", " ", name.casefold().strip())
    forms = {words}
    if re.search(r"[a-z]{3}s$", words) and not words.endswith("ss"):
        forms.add(words[:-1])
        if words.endswith("es"):
            forms.add(words[:-2])
        if words.endswith("ies"):
            forms.add(words[:-3] + "y")
    return forms


def _same(index: Index, looks: Looks) -> list[Finding]:
    groups: dict[str, list[int]] = {}
    for row, (sha, readable) in enumerate(zip(looks.sha256, looks.readable.tolist(), strict=True)):
        if sha is not None and readable:
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
            wrong=False,
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
