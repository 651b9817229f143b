"""What suspects are compared with: clean images of their given and suggested classes, and suspects that look alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from noisesieve.core.records import Ints
from noisesieve.report.report import Report

Features = npt.NDArray[np.float32]  # (N, D) of length 1
MOST_PER_CLASS, FEWEST_PER_CLASS, MOST = 12, 3, 1200  # references of a class, and of a page
CANDIDATES = 240  # clean rows of a class that its references are chosen from
NEAREST = 6  # references beside one suspect
LONGEST_CHAIN = 1500  # suspects of a class that are ordered one by one by similarity


@dataclass(frozen=True)
class References:
    """Clean rows beside the suspects of a page. Classes are labels; references are positions in `rows`."""

    rows: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)  # of each reference
    near: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)  # suspect's row → given, suggested
    order: dict[int, int] = field(default_factory=dict)  # suspect's row → position among look-alikes


def candidates(report: Report, rows: Ints) -> dict[str, Ints]:
    """Return clean rows for each class that suspects have or look like: the surer half, evenly spread."""
    pairs = _pairs(report, rows)
    classes = sorted({label for pair in pairs.values() for label in pair if label is not None})
    clean = (report.verdicts == "clean") & ~report.numbers("trusted")
    sure, labels = report.numbers("label_probability"), report.texts("label")
    names = labels.distinct()
    codes = labels.codes(names)
    code_of = {label: code for code, label in enumerate(names)}
    by_code = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[by_code], np.arange(len(names) + 1))
    chosen = {}
    for label in classes:
        code = code_of.get(label)
        own = by_code[starts[code] : starts[code + 1]] if code is not None else by_code[:0]
        own = own[clean[own]]
        own = own[np.argsort(-sure[own], kind="stable")][: max(MOST_PER_CLASS, len(own) // 2)]
        chosen[label] = _spread(own, CANDIDATES).astype(np.int64)
    return chosen


def choose_references(
    report: Report, rows: Ints, pool: dict[str, Ints], features: Callable[[Ints], Features] | None
) -> References:
    """Choose the references of every class, those nearest to each suspect, and an order in which look-alikes are close.

    Without features a class's surest rows are its references, the same for every suspect.
    """
    pairs, most = _pairs(report, rows), max(FEWEST_PER_CLASS, min(MOST_PER_CLASS, MOST // max(1, len(pool))))
    found = References()
    near: dict[int, dict[str, list[int]]] = {row: {} for row in rows.tolist()}
    for label, candidate_rows in pool.items():
        own = np.array([row for row, pair in pairs.items() if label in pair], dtype=np.int64)
        first = len(found.rows)
        if features is None or not len(own) or not len(candidate_rows):
            chosen = candidate_rows[:most]
            nearest = np.tile(np.arange(min(NEAREST, len(chosen))), (len(own), 1))
        else:
            similarity = features(own) @ features(candidate_rows).T  # (S, C)
            picked = _cover(similarity, most)
            chosen = candidate_rows[picked]
            nearest = np.argsort(-similarity[:, picked], axis=1, kind="stable")[:, :NEAREST]
        found.rows.extend(chosen.tolist())
        found.labels.extend([label] * len(chosen))
        for row, positions in zip(own.tolist(), nearest.tolist(), strict=True):
            near[row][label] = [first + position for position in positions]
    for row, (given, suggested) in pairs.items():
        found.near[row] = (near[row].get(str(given), []), near[row].get(str(suggested), []))
    found.order.update(_look_alikes(pairs, features))
    return found


def _pairs(report: Report, rows: Ints) -> dict[int, tuple[str, str | None]]:
    """Return the given and the suggested label of some rows; without a suggestion, the most probable other class."""
    part = report.take(rows, "label", "suggested_label", "top_labels")
    return {
        row: (values["label"], values["suggested_label"] or _first_other(values["top_labels"], values["label"]))
        for row, values in zip(rows.tolist(), part.to_pylist(), strict=True)
    }


def _first_other(labels: list[str] | None, given: str) -> str | None:
    return next((label for label in labels or [] if label != given), None)


def _spread(rows: Ints, most: int) -> Ints:
    """Return at most `most` of the rows, evenly spaced."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]


def _cover(similarity: Features, most: int) -> list[int]:
    """Return candidates that together are near to every suspect: each next one adds the most similarity."""
    best = np.full(len(similarity), -1.0, dtype=np.float32)
    picked: list[int] = []
    for _ in range(min(most, similarity.shape[1])):
        gain = np.maximum(similarity - best[:, None], 0).sum(axis=0)
        gain[picked] = -1
        picked.append(int(gain.argmax()))
        best = np.maximum(best, similarity[:, picked[-1]])
    return picked


def _look_alikes(
    pairs: dict[int, tuple[str, str | None]], features: Callable[[Ints], Features] | None
) -> dict[int, int]:
    """Return a position for each suspect; within one suggested class, neighbours look alike."""
    by_class: dict[str | None, list[int]] = {}
    for row, (_, suggested) in pairs.items():
        by_class.setdefault(suggested, []).append(row)
    order: dict[int, int] = {}
    for members in by_class.values():
        rows = np.array(members, dtype=np.int64)
        if features is None:
            ranked = sorted(members, key=lambda row: (pairs[row][0], row))
        else:
            ranked = rows[_chain(features(rows))].tolist()
        order.update((row, position) for position, row in enumerate(ranked))
    return order


def _chain(values: Features) -> Ints:
    """Return an order in which each row follows its most similar predecessor; for many rows along their main axis."""
    if len(values) > LONGEST_CHAIN:
        centred = values - values.mean(axis=0)
        axis = np.ones(values.shape[1], dtype=np.float32)
        for _ in range(20):
            axis = centred.T @ (centred @ axis)
            axis /= max(1e-12, float(np.linalg.norm(axis)))
        return np.argsort(centred @ axis, kind="stable").astype(np.int64)
    left = np.ones(len(values), dtype=np.bool_)
    chain = [int((values @ values.mean(axis=0)).argmin())] if len(values) else []  # the strangest one first
    while len(chain) < len(values):
        left[chain[-1]] = False
        chain.append(int(np.where(left, values @ values[chain[-1]], -np.inf).argmax()))
    return np.array(chain, dtype=np.int64)


def group_values(report: Report, rows: Ints) -> list[str | None]:
    """Return the values of the column that the run was grouped by."""
    if report.summary.groups is None or report.summary.groups.column not in report.column_names:
        return [None] * len(rows)
    name = report.summary.groups.column
    column = report.take(rows, name)[name]
    return [None if value is None else str(value) for value in pc.cast(column, "string").to_pylist()]
