"""Which rows of a run a retraining uses: with their label, without it, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noisesieve.commands._open_run import read_outcomes
from noisesieve.commands.command_settings import RetrainSettings
from noisesieve.core.records import Bools, Ints
from noisesieve.report.report import Report

UNUSED, LABELLED, UNLABELLED = 0, 1, 2  # takes no part; trained on with its label; trained on without a label
CONFIDENT = 0.5  # probability from which a suggestion is trained on


@dataclass(frozen=True)
class RoleCounts:
    """How many rows a retraining uses in which way."""

    clean: int
    corrupted: int
    waived: int
    decided: int
    relabelled: int
    left_out: int
    unreadable: int


@dataclass(frozen=True)
class RowRoles:
    """How the retraining uses each row of the report."""

    role: Ints  # (N,) UNUSED, LABELLED or UNLABELLED
    labels: list[str]  # the label to train on
    fixed: Bools  # (N,) its label is right by a person's word: waived, trusted or decided
    counts: RoleCounts


def assign_roles(report: Report, settings: RetrainSettings, root: Path) -> RowRoles:
    """Use clean rows with their label and corrupted rows without; decisions of people override the verdict."""
    verdicts, labels = report.verdicts, list(report.texts("label"))
    clean = verdicts == "clean"
    early = report.read_beside("division.parquet")
    if early is not None:  # the preset cifar uses the split of an earlier epoch
        clean = early["clean"].to_numpy(zero_copy_only=False) & (verdicts != "unreadable")
    waived = report.numbers("waived") & (verdicts != "unreadable")
    used = np.where(clean | waived, LABELLED, UNLABELLED)
    role: Ints = np.where(verdicts == "unreadable", UNUSED, used).astype(np.int64)
    relabelled = 0
    if settings.training.relabel is not None:
        probability = report.numbers("predicted_probability")
        suggested = report.texts("suggested_label")
        for row in np.flatnonzero((role == UNLABELLED) & (probability >= settings.training.relabel)).tolist():
            if suggested[row] is not None:
                labels[row], role[row], relabelled = suggested[row], LABELLED, relabelled + 1
    fixed = waived | report.numbers("trusted")
    decided = _apply_decisions(report, settings, role, labels, fixed, root)
    return RowRoles(
        role,
        labels,
        fixed,
        RoleCounts(
            clean=int((role == LABELLED).sum()),
            corrupted=int((role == UNLABELLED).sum()),
            waived=int((waived & ~clean).sum()),
            decided=decided,
            relabelled=relabelled,
            left_out=int(((role == UNUSED) & (verdicts != "unreadable")).sum()),
            unreadable=int((verdicts == "unreadable").sum()),
        ),
    )


def sure_suggestions(report: Report, rows: Ints, classes: list[str], role: Ints) -> tuple[Ints, Bools]:
    """Return the suggested class of each of `rows`, -1 for none, and which corrupted ones have a sure suggestion.

    `role` is theirs.
    """
    suggested = report.texts("suggested_label").codes(classes)[rows]
    probability = report.numbers("predicted_probability")[rows]
    return suggested, (role == UNLABELLED) & (suggested >= 0) & (probability >= CONFIDENT)


def _apply_decisions(
    report: Report, settings: RetrainSettings, role: Ints, labels: list[str], fixed: Bools, root: Path
) -> int:
    """Use decided rows with the decided label, and leave out those decided to be unusable. Returns their count."""
    if not settings.decisions:
        return 0
    outcomes, _ = read_outcomes(report, settings.decisions, new_classes=False, root=root)
    verdicts = report.verdicts
    for row, outcome in outcomes.items():
        if verdicts[row] != "unreadable":
            role[row] = UNUSED if outcome.label is None else LABELLED
            labels[row] = outcome.label or labels[row]
            fixed[row] = True
    return len(outcomes)
