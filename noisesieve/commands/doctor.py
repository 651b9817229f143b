"""`noisesieve doctor`: check a dataset before a scan: broken files, duplicates, odd classes and sizes, the cost."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.errors import InputError
from noisesieve.core.progress import Session
from noisesieve.core.records import FileFacts, Index, Ints
from noisesieve.core.text import natural_key
from noisesieve.learn.cost import CostEstimate, estimate
from noisesieve.learn.describe import describe
from noisesieve.learn.device import require_device
from noisesieve.learn.distributed import Processes
from noisesieve.learn.networks.backbones import LITE
from noisesieve.learn.networks.lite import lite_weights
from noisesieve.learn.plan import image_size, plan
from noisesieve.pixels.decoder import Decoder
from noisesieve.pixels.near_duplicates import near_duplicates
from noisesieve.report.schema import LOW_EVIDENCE
from noisesieve.report.summarize import equal_contents
from noisesieve.sources.containers import read_index

SHOWN = 10  # examples of a finding
COMPARED_SIDE = 32  # pixels that look-alikes are found by, at least
FAR = 6.0  # deviations from the median beyond which a size is reported


@dataclass(frozen=True)
class Finding:
    """Something the user should look at; `wrong` if it makes the results of a scan worse."""

    kind: str
    text: str
    count: int
    wrong: bool
    examples: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Diagnosis:
    """What was found in a dataset, and what a scan of it would do and cost."""

    data: str
    examples: int
    readable: int
    classes: int
    findings: list[Finding]
    wrong: int  # findings that make the results of a scan worse
    plan: str | None  # None: there are fewer than two classes
    estimate: CostEstimate | None


def diagnose(settings: ScanSettings, *, session: Session) -> Diagnosis:
    """Read every file and decode every image once. Nothing is trained."""
    require_device(settings.device)
    processes = Processes.join(settings.device)
    index = read_index(settings.source, min_classes=1)
    device = processes.device.type

    def size_of(sides: Ints) -> int:
        """Return the training size, or less where the images are smaller: nothing is trained on these pixels."""
        wanted = image_size(settings.training, longest_sides=sides, device=device)
        return min(wanted, max(COMPARED_SIDE, int(sides.max(initial=0))))

    with tempfile.TemporaryDirectory() as scratch, Decoder(settings.pixels, session) as decoder:
        file_facts = decoder.read(index, size_of)
        size = size_of(file_facts.longest_sides)
        decoded = decoder.decode(index, file_facts, size=size, scratch=Path(scratch))
        if len(decoded.rows) == 0:
            raise InputError(
                f"{index.root}: no image can be read ({decoded.file_facts.status[0]}).", "Is --root right?"
            )
        pairs = near_duplicates(decoded.pixels, session)
    file_facts, rows = decoded.file_facts, decoded.rows
    alike = [(int(rows[a]), int(rows[b])) for a, b in pairs if file_facts.sha256[rows[a]] != file_facts.sha256[rows[b]]]
    findings = [
        *_unreadable(index, file_facts),
        *_passed_over(index),
        *_classes(index, file_facts),
        *_same(index, file_facts),
        *_alike(index, alike),
        *_sizes(index, file_facts),
    ]
    classes = len(index.column("labels").take(rows).distinct())
    described, cost = _plan_and_cost(settings, file_facts, len(rows), classes, processes)
    return Diagnosis(
        data=str(settings.source.path),
        examples=len(index),
        readable=len(rows),
        classes=classes,
        findings=findings,
        wrong=sum(finding.wrong for finding in findings),
        plan=described,
        estimate=cost,
    )


def _plan_and_cost(
    settings: ScanSettings, file_facts: FileFacts, rows: int, classes: int, processes: Processes
) -> tuple[str | None, CostEstimate | None]:
    if classes < 2:
        return None, None
    sides, device = file_facts.longest_sides, processes.device
    recipe = plan(settings.training, rows=rows, classes=classes, longest_sides=sides, device=device.type)
    if recipe.weights == LITE:
        lite_weights()  # are they the ones that they should be?
    cost = estimate(recipe, rows=rows, classes=classes, processes=Processes(device=device))
    return f"{settings.training.preset}: {describe(recipe, processes)}", cost


def _finding(kind: str, text: str, items: Iterable[str], *, wrong: bool) -> list[Finding]:
    rest = iter(items)
    shown = list(itertools.islice(rest, SHOWN))
    return [Finding(kind, text, len(shown) + sum(1 for _ in rest), wrong, shown)] if shown else []


def _unreadable(index: Index, file_facts: FileFacts) -> list[Finding]:
    bad = (f"{index.ids[row]}: {file_facts.status[row]}" for row in np.flatnonzero(~file_facts.readable).tolist())
    return _finding("unreadable", "images that cannot be read", bad, wrong=True)


def _passed_over(index: Index) -> list[Finding]:
    return _finding("passed over", "files that a scan skips", index.notes, wrong=False)


def _classes(index: Index, file_facts: FileFacts) -> list[Finding]:
    labels = index.column("labels")
    names = sorted(labels.distinct(), key=natural_key)
    found = np.bincount(labels.codes(names)[file_facts.readable], minlength=len(names))
    counts = dict(zip(names, found.tolist(), strict=True))
    few = (f"{label} ({counts[label]})" for label in names if counts[label] < LOW_EVIDENCE)
    same = (" = ".join(map(repr, group)) for group in _same_names(names))
    one = ["a scan needs at least two classes"] if len(names) < 2 else []
    return [
        *_finding("one class", "only one class", one, wrong=True),
        *_finding("few examples", f"classes of fewer than {LOW_EVIDENCE} readable images", few, wrong=True),
        *_finding("similar names", "classes that differ only in case, spaces or plural", same, wrong=True),
    ]


def _same_names(names: list[str]) -> list[list[str]]:
    """Return groups of classes whose names differ only in case, separators, or singular and plural."""
    groups: dict[str, list[str]] = {}
    for name in names:
        forms = spellings(name)
        spelling = next((form for form in sorted(forms) if form in groups), None)
        group = groups[spelling] if spelling is not None else []
        group.append(name)
        for form in forms:
            groups.setdefault(form, group)
    unique = {id(group): group for group in groups.values()}
    return [group for group in unique.values() if len(group) > 1]


def spellings(name: str) -> set[str]:
    """Return a class name and its possible singulars, in lower case and with spaces as separators."""
    words = re.sub(r"(?<=\w)[\s_\-]+(?=\w)", " ", name.casefold().strip())
    forms = {words}
    if re.search(r"[a-z]{3}s$", words) and not words.endswith("ss"):
        forms.add(words[:-1])
        if words.endswith("es"):
            forms.add(words[:-2])
        if words.endswith("ies"):
            forms.add(words[:-3] + "y")
    return forms


def _same(index: Index, file_facts: FileFacts) -> list[Finding]:
    plain, conflicting = equal_contents(file_facts.hashes, file_facts.readable, index.column("labels"))
    return [
        *_finding("two labels", "images under two labels", (_named(index, group) for group in conflicting), wrong=True),
        *_finding("duplicates", "images more than once", (_named(index, group) for group in plain), wrong=False),
    ]


def _alike(index: Index, pairs: list[tuple[int, int]]) -> list[Finding]:
    conflicting = [pair for pair in pairs if index.labels[pair[0]] != index.labels[pair[1]]]
    plain = [pair for pair in pairs if index.labels[pair[0]] == index.labels[pair[1]]]
    return [
        *_finding(
            "alike, two labels",
            "pairs of images that look alike under two labels",
            (_named(index, pair) for pair in conflicting),
            wrong=False,
        ),
        *_finding("alike", "pairs of images that look alike", (_named(index, pair) for pair in plain), wrong=False),
    ]


def _named(index: Index, rows: Iterable[int]) -> str:
    return " = ".join(f"{index.ids[row]} ({index.labels[row]})" for row in list(rows)[:4])


def _sizes(index: Index, file_facts: FileFacts) -> list[Finding]:
    rows = np.flatnonzero(file_facts.readable)
    wide, high = file_facts.width[rows].astype(float), file_facts.height[rows].astype(float)
    odd_size = _outliers(np.log(np.maximum(wide, high)))
    odd_shape = _outliers(np.log(wide / high))

    def shown(mask: Any) -> Iterable[str]:
        return (f"{index.ids[row]}: {file_facts.width[row]}x{file_facts.height[row]}" for row in rows[mask].tolist())

    return [
        *_finding("sizes", "images far larger or smaller than most", shown(odd_size), wrong=False),
        *_finding("shapes", "images far longer or wider than most", shown(odd_shape), wrong=False),
    ]


def _outliers(values: Any) -> Any:
    """Return which values lie far from the median: at least a factor of two, even if all others are equal."""
    gaps = np.abs(values - np.median(values))
    return gaps > max(FAR * 1.4826 * float(np.median(gaps)), np.log(2.0))
