"""Prepare a retraining: check the images, check the folder, decode, plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from noisesieve import __version__
from noisesieve.commands._open_run import settings_of_run
from noisesieve.commands._retrain_rows import LABELLED, UNLABELLED, UNUSED, RowRoles
from noisesieve.commands._retrain_summaries import RetrainSummary
from noisesieve.commands._test_set import decode_test_set, read_test_set
from noisesieve.commands.command_settings import RetrainSettings
from noisesieve.core.columns import Hashes
from noisesieve.core.errors import OutputError, StateError
from noisesieve.core.files import digest, sha256_of
from noisesieve.core.progress import Session
from noisesieve.core.records import FileFacts, Index, Ints
from noisesieve.core.untrusted import read_json
from noisesieve.learn.recipes import Recipe, RetrainRecipe
from noisesieve.pixels.decoded import Decoded
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.build_table import class_codes
from noisesieve.report.choose_folder import output_folder
from noisesieve.report.report import Report
from noisesieve.report.run import Identity, RunFolder, RunRecord, fingerprint
from noisesieve.report.saved_model import SavedModel
from noisesieve.retrain.data import LabelledTestSet
from noisesieve.retrain.retrain_plan import plan_retraining


@dataclass(frozen=True)
class RetrainJob:
    """A retraining that is ready to start."""

    report: Report
    model: SavedModel
    roles: RowRoles
    decoded: Decoded
    codes: Ints  # (M,) by decoded row: the label to train on; -1 for a class that the run does not have
    given: Ints  # (M,) the given label
    test_set: LabelledTestSet | None
    recipe: RetrainRecipe
    settings: RetrainSettings
    folder: RunFolder
    identity: Identity

    def rows(self, *roles: int) -> Ints:
        """Return the decoded rows that have one of these roles."""
        return np.flatnonzero(np.isin(self.roles.role[self.decoded.rows], roles))


def prepare_retraining(
    report: Report,
    model: SavedModel,
    index: Index,
    roles: RowRoles,
    settings: RetrainSettings,
    folder: RunFolder,
    decoders: tuple[Decoder, Decoder],
    session: Session,
) -> RetrainJob | None:
    """Check the images, check the folder, decode and plan. Returns None if this retraining is finished already."""
    (decoder, test_decoder), size, scratch = decoders, model.image_size, folder.checkpoints
    file_facts = decoder.read(index, lambda _: size)
    refuse_changed(report, index, file_facts.hashes, roles.role)
    test = None
    if (source := settings.test.source) is not None:
        test = read_test_set(source, model.classes, size, test_decoder, session)
    identity = _identity(settings, report, roles, test)
    state = folder.find_state(identity, index, file_facts, force=settings.force)
    if state == "finished":
        return None
    decoded = decoder.decode(index, file_facts, size=size, scratch=scratch / "pixels")
    roles = _without_undecodable(roles, report, decoded, session)
    _warn_of_empty_classes(roles, model.classes, session)
    test_set = None
    if test is not None:
        test_set = decode_test_set(test, model.classes, size, test_decoder, session, scratch=scratch / "test")
    recipe = plan_retraining(
        recipe_of_run(report),
        settings.training,
        preset=settings_of_run(report, settings.moved).training.preset,
        labelled=int((roles.role == LABELLED).sum()),
        unlabelled=int((roles.role == UNLABELLED).sum()),
        flip=model.flip,
    )
    folder.require_free_space(6 * (report.path.parent / "model.safetensors").stat().st_size + 2**26)
    folder.begin(RunRecord(identity, version=__version__), index, file_facts, fresh=state == "fresh")
    codes, given = (_codes(labels, decoded, model.classes) for labels in (roles.labels, index.labels))
    return RetrainJob(report, model, roles, decoded, codes, given, test_set, recipe, settings, folder, identity)


def refuse_changed(report: Report, index: Index, now: Hashes, role: Ints) -> None:
    """Refuse images that are used and are missing or changed since the run."""
    for row in np.flatnonzero(now.differ(report.hashes) & (role != UNUSED)).tolist():
        raise StateError(
            f"{index.ids[row]!r}: {'missing' if now[row] is None else 'changed'} since the run.",
            "Scan the dataset again.",
        )


def _identity(
    settings: RetrainSettings, report: Report, roles: RowRoles, test: tuple[Index, FileFacts] | None
) -> Identity:
    """Return what a retraining is recognised by."""
    return {
        "run": sha256_of(report.path),
        "model": sha256_of(report.path.parent / "model.safetensors"),
        "training": vars(settings.training),
        "candidates": list(settings.candidates),
        "roles": digest([roles.role.tolist(), roles.labels]),
        "test": None if test is None else fingerprint(*test),
    }


def known_summary(folder: Path, settings: RetrainSettings, session: Session) -> RetrainSummary:
    """Return the table of a retraining that is finished already, and say so."""
    session.note("This retraining is finished already: same settings, same run.")
    if (made := RunFolder(folder).read()) is not None and not made.own:
        session.warn("Its run.json is not signed by you: it was made elsewhere, or by an earlier version.")
    try:
        known = RetrainSummary.from_document(read_json(folder / "retrain.json"))
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{folder / 'retrain.json'}: damaged ({error}).", "Retrain with --force.") from error
    return replace(known, run=str(settings.run), output=str(folder))


def choose_output(report: Report, wanted: Path | None, index: Index, session: Session) -> Path:
    """Return the folder of the new model. The run's own is refused."""
    folder = output_folder(wanted or retrained_folder(report.path.parent), index, session)
    if folder.exists() and folder.samefile(report.path.parent):
        raise OutputError(f"{folder}: is the run itself.", "Choose another folder with -o.")
    return folder


def retrained_folder(run: Path) -> Path:
    """Return the default output folder, `RUN-retrained`; also for a run given as `.`."""
    return run.with_name(f"{run.name}-retrained") if run.name else Path(f"{run.resolve()}-retrained")


def _codes(labels: Sequence[str], decoded: Decoded, classes: list[str]) -> Ints:
    """Return the labels of the decoded rows as positions in `classes`; -1 for a class that the run does not have."""
    return class_codes(labels, classes)[decoded.rows]


def _without_undecodable(roles: RowRoles, report: Report, decoded: Decoded, session: Session) -> RowRoles:
    """Leave out rows that cannot be decoded any more, with a warning."""
    lost = np.setdiff1d(np.flatnonzero(roles.role != UNUSED), decoded.rows)
    for row in lost[:5].tolist():
        session.warn(f"{report.texts('id')[row]}: {decoded.file_facts.status[row]}: left out.")
    role = roles.role.copy()
    role[lost] = UNUSED
    clean, corrupted = int((role == LABELLED).sum()), int((role == UNLABELLED).sum())
    return replace(roles, role=role, counts=replace(roles.counts, clean=clean, corrupted=corrupted))


def _warn_of_empty_classes(roles: RowRoles, classes: list[str], session: Session) -> None:
    labelled = {label for label, role in zip(roles.labels, roles.role.tolist(), strict=True) if role == LABELLED}
    if missing := [name for name in classes if name not in labelled]:
        names = ", ".join(map(repr, missing[:5]))
        session.warn(f"No clean row of {names}: the new model will never predict that class.")


def recipe_of_run(report: Report) -> Recipe:
    """Return the recipe that the run was trained with."""
    return report.summary.training.recipe
