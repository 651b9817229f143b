"""A retraining, ready to begin: looked at, claimed, decoded, decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from noisesieve import __version__, pixels, report
from noisesieve.errors import StateError
from noisesieve.exam import read_exam, test_set
from noisesieve.files import digest, sha256_of
from noisesieve.learn.model import Model
from noisesieve.records import Index, Ints, Looks
from noisesieve.reopen import pixels_of, settings_of
from noisesieve.retrain import plan as plans
from noisesieve.retrain.loop import Exam
from noisesieve.retrain.plan import RetrainRecipe
from noisesieve.roles import DROPPED, LEARNT, SEEN, Roles
from noisesieve.settings import Recipe, RetrainSettings
from noisesieve.watch import Watcher


@dataclass(frozen=True)
class Job:
    """A retraining, ready to begin."""

    made: report.Report
    model: Model
    roles: Roles
    decoded: pixels.Decoded
    codes: Ints  # (M,) by decoded row: the label that counts; -1 for a class that the run does not know
    given: Ints  # (M,) the label that the dataset gives
    exam: Exam | None
    recipe: RetrainRecipe
    settings: RetrainSettings
    place: report.RunFolder
    identity: dict[str, Any]

    def rows(self, *roles: int) -> Ints:
        """The decoded rows that have one of these roles."""
        return np.flatnonzero(np.isin(self.roles.role[self.decoded.rows], roles))


def prepare(
    made: report.Report,
    model: Model,
    index: Index,
    roles: Roles,
    settings: RetrainSettings,
    place: report.RunFolder,
    watcher: Watcher,
    pause: Callable[[], None],
) -> Job | None:
    """Look, claim the folder, decode, decide; None where all of it was done before."""
    own, size, scratch = settings.pixels, model.image_size, place.checkpoints
    as_scanned = replace(own, max_pixels=pixels_of(made).max_pixels)
    looks = pixels.look(index, as_scanned, watcher, pause=pause)
    _refuse_changed(made, index, looks.sha256, roles.role)
    test = None
    if settings.test is not None:
        test = test_set(settings.test, model.classes, own, watcher, pause)
    identity = _identity(settings, made, roles, test)
    claim = place.claim(identity, index, looks, force=settings.force)
    if claim == "finished":
        return None
    decoded = pixels.decode(index, looks, as_scanned, watcher, size=size, scratch=scratch / "pixels", pause=pause)
    roles = _as_decoded(roles, made, decoded, watcher)
    _warn_of_empty_classes(roles, model.classes, watcher)
    exam = None
    if test is not None:
        exam = read_exam(*test, model.classes, size, own, watcher, scratch=scratch / "test", pause=pause)
    recipe = plans.plan(
        recipe_of(made),
        settings.wishes,
        preset=settings_of(made, settings.data, settings.root).wishes.preset,
        labelled=int((roles.role == LEARNT).sum()),
        unlabelled=int((roles.role == SEEN).sum()),
        flip=model.flip,
    )
    place.require_room(6 * (made.path.parent / "model.safetensors").stat().st_size + 2**26)
    place.begin(identity, index, looks, fresh=claim == "fresh", version=__version__)
    codes, given = (_codes(labels, decoded, model.classes) for labels in (roles.labels, index.labels))
    return Job(made, model, roles, decoded, codes, given, exam, recipe, settings, place, identity)


def _refuse_changed(made: report.Report, index: Index, now: Sequence[str | None], role: Ints) -> None:
    before = made.table["sha256"].to_pylist()
    for row in np.flatnonzero(role != DROPPED).tolist():
        if now[row] != before[row]:
            raise StateError(
                f"{index.ids[row]!r}: {'gone' if now[row] is None else 'changed'} since the run.",
                "Scan the dataset again.",
            )


def _identity(
    settings: RetrainSettings, made: report.Report, roles: Roles, test: tuple[Index, Looks] | None
) -> dict[str, Any]:
    """What makes this retraining this one."""
    return {
        "run": sha256_of(made.path),
        "model": sha256_of(made.path.parent / "model.safetensors"),
        "wishes": vars(settings.wishes),
        "baseline": settings.baseline,
        "roles": digest([roles.role.tolist(), roles.labels]),
        "test": None if test is None else report.fingerprint(*test),
    }


def beside(run: Path) -> Path:
    """`RUN-retrained`, wherever the run was named from."""
    return run.with_name(f"{run.name}-retrained") if run.name else Path(f"{run.resolve()}-retrained")


def _codes(labels: list[str], decoded: pixels.Decoded, classes: list[str]) -> Ints:
    """Labels of the readable rows as numbers; -1 for a class that the run does not know."""
    number = {name: code for code, name in enumerate(classes)}
    return np.array([number.get(labels[row], -1) for row in decoded.rows.tolist()], dtype=np.int64)


def _as_decoded(roles: Roles, made: report.Report, decoded: pixels.Decoded, watcher: Watcher) -> Roles:
    """Rows that cannot be decoded any more take no part, and are named."""
    lost = np.setdiff1d(np.flatnonzero(roles.role != DROPPED), decoded.rows)
    for row in lost[:5].tolist():
        watcher.warn(f"{made.table['id'][row].as_py()}: {decoded.looks.status[row]}: it takes no part.")
    role = roles.role.copy()
    role[lost] = DROPPED
    counts = {"clean": int((role == LEARNT).sum()), "corrupted": int((role == SEEN).sum())}
    return replace(roles, role=role, counts={**roles.counts, **counts})


def _warn_of_empty_classes(roles: Roles, classes: list[str], watcher: Watcher) -> None:
    taught = {label for label, role in zip(roles.labels, roles.role.tolist(), strict=True) if role == LEARNT}
    if missing := [name for name in classes if name not in taught]:
        watcher.warn(f"No clean row of {', '.join(map(repr, missing[:5]))}: the new model will never name that class.")


def recipe_of(made: report.Report) -> Recipe:
    """The recipe that the run was trained by."""
    ran = made.summary["training"]["recipe"]
    return Recipe(**{**ran, "lr_steps": tuple(ran["lr_steps"])})
