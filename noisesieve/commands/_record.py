"""The DECIDE and RECORD stages of `scan`: a verdict for every row, and the files of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from noisesieve import __version__
from noisesieve.commands._dataset import Dataset
from noisesieve.commands._train import Trained
from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.files import write_json
from noisesieve.core.memory import release_memory
from noisesieve.core.parquet_file import ParquetTable
from noisesieve.core.progress import Session
from noisesieve.core.records import Verdicts
from noisesieve.learn.evidence import TrainedScores
from noisesieve.learn.model_summary import summarize_model, summarize_ranked_model
from noisesieve.learn.recipes import recipe_to_document
from noisesieve.report.build_table import ReportInputs, build_blocks, probability_blocks
from noisesieve.report.model_card import ModelCard, TrainedWeights, save_model
from noisesieve.report.report import Report, ReportFacts
from noisesieve.report.run import Identity, RunFolder, RunRecord
from noisesieve.report.summarize import summarize
from noisesieve.report.summary import TrainingSummary
from noisesieve.report.waivers import find_waived
from noisesieve.report.write_tables import write_blocks, write_early_clean, write_history, write_margin_history
from noisesieve.sieve.decide import decide
from noisesieve.sieve.recalibrate import apply_shift, recalibrate

MOST_PROBABILITIES = 10**8  # N * K up to which probabilities.parquet is written by default


def decide_rows(trained: Trained) -> Verdicts:
    """Return the verdict of every row: the closed form, a rank, and a probability that people's decisions correct."""
    release_memory()  # of the training
    dataset, scores = trained.dataset, trained.scores
    if dataset.decided:  # the heads learnt the decided labels; the verdicts are on the given ones
        scores = replace(scores, noise_model=None, rank_model=None)
    verdicts = decide(
        scores,
        dataset.given_codes,
        eps=dataset.recipe.sieve_eps,
        trusted=dataset.never_suspects,
        exact=dataset.recipe.exact_label,
    )
    release_memory()
    return _corrected(verdicts, dataset)


def record(
    trained: Trained,
    verdicts: Verdicts,
    run: RunFolder,
    begun: RunRecord,
    settings: ScanSettings,
    session: Session,
) -> Report:
    """Write all files of the run, and put them in place as one set."""
    with run.stage() as staged:
        report = _write_files(trained, verdicts, begun.identity, staged, settings, session)
        run.complete(begun, staged)
    return replace(report, path=run.folder / report.path.name)


def _write_files(
    trained: Trained,
    verdicts: Verdicts,
    identity: Identity,
    folder: Path,
    settings: ScanSettings,
    session: Session,
) -> Report:
    dataset, weights, scores = trained.dataset, trained.weights, trained.scores
    recipe, classes = dataset.recipe, dataset.classes
    index, file_facts = dataset.index, dataset.decoded.file_facts
    waived, broken = find_waived(settings.waivers, index, file_facts.hashes)
    session.warn_all(broken)
    inputs = ReportInputs(
        index,
        file_facts,
        dataset.decoded.rows,
        classes,
        dataset.given_codes,
        scores,
        verdicts,
        waived=waived,
        decided=dataset.decided,
    )
    facts = ReportFacts(
        version=__version__,
        classes=classes,
        prior=scores.prior.tolist(),
        beta=scores.beta,
        sieve_eps=recipe.sieve_eps,
        settings={**identity, "recipe": recipe_to_document(recipe)},
        threads=torch.get_num_threads(),
        fingerprint=identity["fingerprint"],
        label_column=index.label_column,
    )
    write_blocks(build_blocks(inputs), folder / "report.parquet", facts.to_document())
    if settings.probabilities == "all" or (
        settings.probabilities == "auto" and scores.probs.size <= MOST_PROBABILITIES
    ):
        write_blocks(probability_blocks(inputs), folder / "probabilities.parquet", {"classes": classes})
    if scores.history:
        write_history(scores.history, folder / "history.parquet")
    write_margin_history(inputs, folder / "margin_history.parquet")
    training = TrainingSummary(scores.facts, "cpu" if weights is None else weights.device, recipe)
    release_memory()
    report = Report(facts, folder / "report.parquet", ParquetTable(folder / "report.parquet"))
    summary = summarize(
        report,
        undecided=verdicts.undecided,
        training=training,
        group_by=settings.group_by,
        recalibration=verdicts.recalibration,
    )
    write_json(folder / "summary.json", summary.to_document())
    write_early_clean(inputs, folder / "division.parquet")
    if weights is not None:
        _save_model(folder, dataset, weights, scores, verdicts)
    for row in summary.classes:
        if row.of and row.rows == row.of:
            session.warn(f"Class '{row.label}': every row is flagged. Look at some of its images first.")
    return replace(report, _summary=summary)


def _save_model(
    folder: Path, dataset: Dataset, weights: TrainedWeights, scores: TrainedScores, verdicts: Verdicts
) -> None:
    """Write the weights with their card, for `check` and `retrain`."""
    recipe = dataset.recipe
    own_scores, ranked = scores.saved_model_scores, verdicts.rank_model is not None
    assert own_scores is not None
    card = ModelCard(
        network=recipe,
        frozen=recipe.frozen,
        classes=dataset.classes,
        prior=scores.prior.tolist(),
        beta=scores.beta,
        sieve_eps=recipe.sieve_eps,
        exact_label=recipe.exact_label,
        summary=summarize_ranked_model(own_scores, verdicts)
        if ranked
        else summarize_model(own_scores, verdicts.corrupted, verdicts.corruption_probability),
        rank_model=verdicts.rank_model,
    )
    save_model(folder, weights, card)


def _corrected(verdicts: Verdicts, dataset: Dataset) -> Verdicts:
    """Return the verdicts with probabilities that the decisions corrected; those of trusted rows are known, 0 or 1."""
    known = dataset.trusted
    if not known.any():
        return verdicts
    rows = dataset.decoded.rows
    labelled = {row: decided for row, decided in dataset.decided.items() if decided.label is not None}
    # A label that `apply` has corrected since is right by now: it says nothing about this model's probabilities.
    telling = np.isin(rows, [row for row, decided in labelled.items() if not decided.applied])
    wrong = dataset.codes != dataset.given_codes
    before = verdicts.corruption_probability
    recalibration = recalibrate(before[telling], wrong[telling]) if telling.any() else None
    shifted = before if recalibration is None else apply_shift(before, recalibration)
    probability = np.where(known, wrong.astype(np.float64), shifted)
    return replace(verdicts, corruption_probability=probability, recalibration=recalibration)
