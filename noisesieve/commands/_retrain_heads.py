"""`noisesieve retrain` on a frozen run: heads on its stored features, trained in several ways, in seconds.

REPORT   report    run → which rows are clean, corrupted, or decided by people
FEATURES learn     the run's features, from the cache; those of the test set too
RETRAIN  retrain   all rows, kept rows, + suggestions, corrected labels → heads, compared out of fold
RECORD   output folder: model.safetensors, model.json, the run's report, retrain.json
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from noisesieve import __version__
from noisesieve.commands._identity import own_weights
from noisesieve.commands._open_run import index_of_run, pixel_settings_of_run, settings_of_run
from noisesieve.commands._retrain_features import RetrainRows, read_rows, read_test, read_vectors, test_rows
from noisesieve.commands._retrain_job import choose_output, known_summary, refuse_changed
from noisesieve.commands._retrain_rows import LABELLED, UNUSED, RowRoles, assign_roles, sure_suggestions
from noisesieve.commands._retrain_summaries import (
    ALL,
    CORRECTED,
    HEADS,
    KEPT,
    SCAN,
    SUGGESTED,
    CandidateFigures,
    RetrainSummary,
)
from noisesieve.commands.command_settings import RetrainSettings
from noisesieve.core.errors import InputError
from noisesieve.core.files import atomic_write, digest, sha256_of, write_json
from noisesieve.core.records import Bools, Ints
from noisesieve.core.run_lock import locked
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.frozen.features import Features
from noisesieve.learn.frozen.head_data import Head
from noisesieve.learn.model_summary import summarize_model
from noisesieve.learn.networks.backbones import build
from noisesieve.learn.networks.pretrained import load_backbone
from noisesieve.learn.recipes import HeadRecipe
from noisesieve.learn.second_opinion import label_scores
from noisesieve.pixels.decoded import Decoded
from noisesieve.pixels.decoder import Decoder
from noisesieve.pixels.stream import NoPixels
from noisesieve.report.model_card import ModelCard, TrainedWeights, save_model
from noisesieve.report.report import Report
from noisesieve.report.run import Identity, RunFolder, RunRecord, fingerprint
from noisesieve.report.saved_model import load_head
from noisesieve.retrain.comparison import choose
from noisesieve.retrain.head_candidates import (
    DECAYS,
    ROUND_DECAYS,
    ROUNDS,
    Candidate,
    TrainedCandidate,
    correct_labels,
    train_candidate,
)


def retrain_heads(report: Report, settings: RetrainSettings, session: TrainingSession) -> RetrainSummary:
    """Train heads on the features of a frozen run into a folder of their own, and return the table."""
    start = time.monotonic()
    index = index_of_run(report, settings.moved)
    roles = assign_roles(report, settings, index.root)
    if not (roles.role == LABELLED).any():
        raise InputError(f"{report.path.parent}: no row is clean.", "There is nothing to train on.")
    folder = choose_output(report, settings.output, index, session)
    scanned, run = settings_of_run(report, settings.moved), RunFolder(folder)
    with locked(folder):
        run.recover()
        as_scanned = replace(settings.pixels, max_pixels=pixel_settings_of_run(report).max_pixels)
        with Decoder(as_scanned, session) as decoder:
            size = report.summary.training.recipe.image_size
            test = read_test(report, settings, size, decoder, session)
            vectors = read_vectors(report, scanned, index, session)
            facts = decoder.read(index, lambda _: size) if vectors is None else vectors.file_facts()
            if vectors is None:
                refuse_changed(report, index, facts.hashes, roles.role)
            identity = _identity(settings, report, roles, None if test is None else fingerprint(*test))
            state = run.find_state(identity, index, facts, force=settings.force)
            if state == "finished":
                return known_summary(folder, settings, session)
            run.begin(RunRecord(identity, version=__version__), index, facts, fresh=state == "fresh")
            decoded = Decoded(facts, np.arange(len(index), dtype=np.int64), NoPixels(len(index)), reused=True)
            if vectors is None:
                decoded = decoder.decode(index, facts, size=size, scratch=run.checkpoints / "pixels")
            rows = read_rows(report, scanned, settings, index, decoded, vectors, session, scratch=run.checkpoints)
            tested = None
            if test is not None:
                decoded = decoder.decode(*test, size=size, scratch=run.checkpoints / "test")
                tested = test_rows(test[0], decoded, rows, settings, session, scratch=run.checkpoints / "test-features")
        trained = _train(rows, roles, report, session)
        given = rows.data.labels.numpy()
        hits: dict[str, Bools] = {SCAN: _predicted_by_scan(report, rows) == given}
        chosen, best = choose(hits | {one.name: one.probs.argmax(axis=1) == given for one in trained}, CORRECTED)
        figures = _figures(report, rows, trained, tested)
        summary = RetrainSummary(
            kind=HEADS,
            version=__version__,
            run=str(settings.run),
            output=str(folder),
            device=session.device.type,
            rows=roles.counts,
            candidates=figures,
            chosen=chosen,
            best=best,
            compared_on=len(rows.data.labels),
            test_rows=None if tested is None else len(tested[1]),
            saved_accuracy=next(row.accuracy for row in figures if row.name == chosen),
            seconds=time.monotonic() - start,
        )
        with run.stage() as staged:
            saved = next((one for one in trained if one.name == chosen), None)
            _save(report, rows, roles, saved, staged, session)
            write_json(staged / "retrain.json", summary.to_document())
            own = own_weights(scanned)
            location = {} if own is None else {"weights": str(own.resolve())}
            run.complete(RunRecord(identity, version=__version__, location=location), staged)
    return summary


def _identity(settings: RetrainSettings, report: Report, roles: RowRoles, test: str | None) -> Identity:
    """Return what a retraining is recognised by."""
    return {
        "run": sha256_of(report.path),
        "model": sha256_of(report.path.parent / "model.safetensors"),
        "kind": "heads",
        "roles": digest([roles.role.tolist(), roles.labels]),
        "test": test,
    }


def _train(rows: RetrainRows, roles: RowRoles, report: Report, session: TrainingSession) -> list[TrainedCandidate]:
    """Train every candidate on the same folds."""
    given, flip = rows.data.labels.numpy(), report.summary.training.facts.flip
    role, number = roles.role[rows.rows], {name: code for code, name in enumerate(rows.classes)}
    labels = np.array([number.get(roles.labels[row], -1) for row in rows.rows.tolist()], dtype=np.int64)
    kept: Bools = (role == LABELLED) & (labels >= 0)
    suggested, sure = sure_suggestions(report, rows.rows, rows.classes, role)
    sure &= ~kept
    everything: Bools = role != UNUSED
    candidates = [
        Candidate(ALL, given, torch.from_numpy(everything)),
        Candidate(KEPT, np.where(kept, labels, given), torch.from_numpy(kept)),
        Candidate(SUGGESTED, np.where(kept, labels, np.where(sure, suggested, given)), torch.from_numpy(kept | sure)),
    ]
    session.stage("retraining", (len(candidates) + 1) * len(DECAYS) + (ROUNDS - 1) * len(ROUND_DECAYS))
    train = partial(train_candidate, data=rows.data, recipe=rows.recipe, projected=rows.projected, flip=flip)
    trained = [train(candidate, session=session) for candidate in candidates]
    known = Candidate(KEPT, labels, torch.from_numpy(roles.fixed[rows.rows] & kept))
    correct = partial(correct_labels, CORRECTED, data=rows.data, known=known, unusable=~everything)
    before = probs = trained[-1].probs
    for _ in range(ROUNDS - 1):  # labels are corrected by the mean of two rounds: a single one swings
        after = train(correct(probs), session=session, decays=ROUND_DECAYS).probs
        before, probs = after, np.divide(before + after, 2, dtype=np.float32)
    return [*trained, train(correct(probs), session=session)]


def _predicted_by_scan(report: Report, rows: RetrainRows) -> Ints:
    """Return the class (N,) that the scan predicted out of fold."""
    return np.maximum(report.texts("predicted_label").codes(rows.classes)[rows.rows], 0)


def _figures(
    report: Report, rows: RetrainRows, trained: list[TrainedCandidate], tested: tuple[Features, Ints] | None
) -> list[CandidateFigures]:
    """Return the table: the scan's own model first, by its out-of-fold probabilities, then every candidate."""
    given = rows.data.labels.numpy()
    own = _predicted_by_scan(report, rows)
    accuracy: dict[str, float] = {}
    if tested is not None:
        features, right = tested
        heads = {SCAN: load_head(report.path.parent), **{row.name: row.head for row in trained}}
        for name, head in heads.items():
            accuracy[name] = float((_predict(head, features, rows.recipe) == right).mean())
    scan = CandidateFigures(SCAN, len(given), None, float((own == given).mean()), accuracy.get(SCAN))
    others = (
        CandidateFigures(row.name, row.rows, row.weight_decay, row.agreement, accuracy.get(row.name)) for row in trained
    )
    return [scan, *others]


def _predict(head: Head, features: Features, recipe: HeadRecipe) -> Ints:
    """Return the class (N,) of every row, by one linear layer on its features, averaged over the views."""
    points = torch.cat([features.read(depth, slice(0, len(features))) for depth in recipe.depths], dim=2)
    views = range(points.shape[1] if head.flip else 1)
    total = sum((points[:, view] @ head.weight.T + head.bias).softmax(dim=1) for view in views)
    assert isinstance(total, torch.Tensor)
    predicted: Ints = total.argmax(dim=1).numpy()
    return predicted


def _save(
    report: Report,
    rows: RetrainRows,
    roles: RowRoles,
    best: TrainedCandidate | None,
    folder: Path,
    session: TrainingSession,
) -> None:
    """Write the chosen heads, or the scan's own, with their card, and the run's report beside them.

    Heads on images are saved with their backbone: one file has the whole network.
    """
    recipe = rows.recipe
    probabilities, own = (
        np.nan_to_num(report.numbers(name)[rows.rows].astype(np.float64))
        for name in ("corruption_probability", "label_probability")
    )
    if best is None:
        scores = np.stack((own, (report.verdicts[rows.rows] == "corrupted").astype(np.float64)), axis=1)
    else:
        scores = label_scores(torch.from_numpy(best.probs), rows.data.labels, recipe.sieve_eps).numpy()
    card = ModelCard(
        network=recipe,
        frozen=rows.weights is None,
        classes=rows.classes,
        prior=report.facts.prior,
        beta=0.0,
        sieve_eps=recipe.sieve_eps,
        summary=summarize_model(scores, roles.role[rows.rows] != LABELLED, probabilities),
    )
    head = load_head(report.path.parent) if best is None else best.head
    weights = TrainedWeights.of_head(head, rows.data.features.statistics, session.device)
    if rows.weights is not None:
        network = build(recipe.backbone, classes=2, image_size=recipe.image_size, seed=0, depths=recipe.depths)
        load_backbone(network, rows.weights)
        weights = replace(weights, tensors={**network.state_dict(), **weights.tensors})
    save_model(folder, weights, card)
    with report.path.open("rb") as source, atomic_write(folder / "report.parquet") as file:
        shutil.copyfileobj(source, file)
