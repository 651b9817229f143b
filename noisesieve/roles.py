"""What each row of a run is to a retraining: its label counts, or only its picture, or neither."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from noisesieve import decisions, report
from noisesieve.records import Ints
from noisesieve.settings import RetrainSettings

DROPPED, LEARNT, SEEN = 0, 1, 2  # a row takes no part, its label counts, only its picture does


@dataclass(frozen=True)
class Roles:
    """What each row of the report is to the retraining."""

    role: Ints  # (N,) DROPPED, LEARNT or SEEN
    labels: list[str]  # the label that counts
    counts: dict[str, int]  # for people: clean, corrupted, waived, decided, relabelled, left out, unreadable


def roles_of(made: report.Report, settings: RetrainSettings, root: Path) -> Roles:
    """Clean rows teach their label, corrupted ones their picture; what people said stands above the verdict."""
    table, verdicts = made.table, made.verdicts
    labels = table["label"].to_pylist()
    clean = verdicts == "clean"
    division = made.path.parent / "division.parquet"
    if division.exists():  # the paper's recipe hands an earlier division over
        clean = pq.read_table(division)["clean"].to_numpy(zero_copy_only=False) & (verdicts != "unreadable")
    waived = table["waived"].to_numpy(zero_copy_only=False) & (verdicts != "unreadable")
    role: Ints = np.where(verdicts == "unreadable", DROPPED, np.where(clean | waived, LEARNT, SEEN)).astype(np.int64)
    relabelled = 0
    if settings.wishes.relabel is not None:
        chance = table["predicted_probability"].to_numpy(zero_copy_only=False)
        suggested = table["suggested_label"].to_pylist()
        for row in np.flatnonzero((role == SEEN) & (chance >= settings.wishes.relabel)).tolist():
            if suggested[row] is not None:
                labels[row], role[row], relabelled = suggested[row], LEARNT, relabelled + 1
    decided = _decided(made, settings, role, labels, root)
    return Roles(
        role,
        labels,
        {
            "clean": int((role == LEARNT).sum()),
            "corrupted": int((role == SEEN).sum()),
            "waived": int((waived & ~clean).sum()),
            "decided": decided,
            "relabelled": relabelled,
            "left_out": int(((role == DROPPED) & (verdicts != "unreadable")).sum()),
            "unreadable": int((verdicts == "unreadable").sum()),
        },
    )


def _decided(made: report.Report, settings: RetrainSettings, role: Ints, labels: list[str], root: Path) -> int:
    """Let people's decisions count: their label is clean, and what they called unusable takes no part."""
    if not settings.decisions:
        return 0
    said = [entry for file in settings.decisions for entry in decisions.read(file).decisions]
    outcomes, _ = decisions.resolve(made, said, root=root, new_classes=False)
    for row, outcome in outcomes.items():
        if made.verdicts[row] != "unreadable":
            role[row] = DROPPED if outcome.label is None else LEARNT
            labels[row] = outcome.label or labels[row]
    return len(outcomes)
