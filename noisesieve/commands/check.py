"""`noisesieve check`: score a new batch with a saved model and apply the policy. Nothing is trained.

INDEX   sources   batch → Index
DECODE  pixels    Index → Pixels       at the model's image size
SCORE   learn     Pixels → Scores      with the saved weights
DECIDE  sieve     Scores → Verdicts    the same closed form as in scan
RECORD  report    Verdicts → report    in the same schema
CHECK   gate      report + policy → pass or fail
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from noisesieve import __version__
from noisesieve.commands._dataset import warn_of_unreadable
from noisesieve.commands._own_vectors import OwnVectors, ids_of_table, refuse_vectors
from noisesieve.commands.command_settings import CheckSettings
from noisesieve.core.errors import InputError, OutputError, StateError
from noisesieve.core.parquet_file import ParquetTable
from noisesieve.core.progress import Session
from noisesieve.core.records import Bools, FileFacts, Index, Ints, Probabilities, Scores, Verdicts
from noisesieve.gate import github
from noisesieve.gate.gate_formats import WRITERS
from noisesieve.gate.policy import (
    BatchCounts,
    GroupRate,
    RuleResult,
    apply_policy,
    count_batch,
    rates_by_group,
    worst_suspects,
)
from noisesieve.gate.result import GateResult
from noisesieve.gate.sarif import MOST
from noisesieve.learn.batch_loader import BatchLoader
from noisesieve.learn.device import choose_device, require_device
from noisesieve.learn.score import predict, split_softmax
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.build_table import ReportInputs, build_blocks, build_table, require_column
from noisesieve.report.report import Report, ReportFacts, read_report
from noisesieve.report.run import fingerprint
from noisesieve.report.saved_model import SavedModel, load_model, load_vector_model
from noisesieve.report.summarize import unreadable_rows
from noisesieve.report.summary import UnreadableRow
from noisesieve.report.waivers import find_waived
from noisesieve.report.write_tables import write_blocks
from noisesieve.sieve.calibrate import apply_calibration, log_probability
from noisesieve.sieve.decide import decide
from noisesieve.sources.containers import read_index
from noisesieve.sources.rewrite_table import REWRITERS
from noisesieve.sources.vectors import read_embeddings

__all__ = ["CheckResult", "GateResult", "check", "github_commands", "github_summary", "render_result"]

BLOCK = 16_384  # embeddings that are scored at a time


@dataclass(frozen=True)
class CheckResult:
    """A batch, scored and checked against the policy."""

    report: Report
    batch: BatchCounts
    rules: list[RuleResult]
    base_rate: float | None  # share of the scan's clean rows that the saved weights alone would flag
    groups: list[GroupRate] | None
    seconds: float
    is_table: bool
    min_probability: float  # probability from which a flagged row counts

    @property
    def passed(self) -> bool:
        return all(rule.passed for rule in self.rules)

    @property
    def unreadable_rows(self) -> list[UnreadableRow]:
        """The first unreadable rows, each with its status."""
        return unreadable_rows(self.report)

    def gate_result(self, name: str, path: str, notes: list[str]) -> GateResult:
        """Return what the writers of JUnit, SARIF, Markdown and GitHub annotations need."""
        return GateResult(
            name=name,
            version=__version__,
            rules=self.rules,
            batch=self.batch,
            suspects=worst_suspects(self.report, MOST, self.min_probability),
            path=path,
            is_table=self.is_table,
            seconds=self.seconds,
            notes=notes,
        )


def check(settings: CheckSettings, *, session: Session) -> CheckResult:
    """Score a batch and check it against the policy."""
    start = time.monotonic()
    require_device(settings.device)
    if settings.output is not None and settings.output.exists() and not settings.force:
        raise OutputError(f"{settings.output}: exists already.", "Choose another name with -o, or pass --force.")
    scanned = read_report(settings.model)
    refuse_vectors(scanned, "check", "predictions")
    trained_on = scanned.hashes
    model, index = _open(settings)
    session.note_all(index.notes)
    session.warn_all(index.warnings)
    labels = index.column("labels").codes(model.classes)
    known = labels >= 0
    if not known.any():
        raise StateError(
            f"{settings.source.path}: no label is a class of the model ({', '.join(model.classes[:5])}, …).",
            "Is it the right model, and --label-column the right column?",
        )
    require_column(index, settings.group_by)
    score = _score if settings.embeddings is None else _score_vectors
    file_facts, rows, probs = score(settings, model, index, known, session)
    waived, broken = find_waived(settings.waivers, index, file_facts.hashes)
    session.warn_all(broken)
    codes = labels[rows]
    if model.is_earlier:
        session.note("The model was saved by an earlier version: rows are ranked by the given label's probability.")
    scores = _scores(probs, model)
    inputs = ReportInputs(
        index=index,
        file_facts=file_facts,
        rows=rows,
        classes=model.classes,
        codes=codes,
        scores=scores,
        verdicts=_decide(scores, codes, model),
        unknown=file_facts.readable & ~known,
        in_training=file_facts.hashes.is_in(trained_on),
        waived=waived,
    )
    report, min_probability = _record(settings, model, inputs), settings.min_probability
    batch = count_batch(report, min_probability)
    return CheckResult(
        report=report,
        batch=batch,
        rules=apply_policy(batch, settings.policy),
        base_rate=None if model.base_rate is None else model.base_rate["flagged"] / max(1, model.base_rate["of"]),
        groups=None if settings.group_by is None else rates_by_group(report, settings.group_by, min_probability),
        seconds=time.monotonic() - start,
        is_table=index.kind in REWRITERS,
        min_probability=min_probability,
    )


def render_result(result: GateResult, kind: str) -> bytes:
    """Return a checked batch as `junit`, `sarif` or `markdown`."""
    return WRITERS[kind](result).encode("utf-8", "backslashreplace")


def github_commands(result: GateResult) -> list[str]:
    """Return GitHub's workflow commands: the failed rules, then the worst suspects."""
    return github.commands(result)


def github_summary(result: GateResult) -> str:
    """Return Markdown that fits GitHub's step summary."""
    return github.summary(WRITERS["markdown"](result))


def _score(
    settings: CheckSettings, model: SavedModel, index: Index, known: Bools, session: Session
) -> tuple[FileFacts, Ints, Probabilities]:
    """Decode the batch and score its rows of known classes.

    Returns the files, the scored rows, and the probabilities of every head, (heads, N, K).
    """
    with tempfile.TemporaryDirectory() as scratch, Decoder(settings.pixels, session) as decoder:
        file_facts = decoder.read(index, lambda _: model.image_size)
        decoded = decoder.decode(index, file_facts, size=model.image_size, scratch=Path(scratch))
        if len(decoded.rows) == 0:
            raise InputError(f"{index.root}: no image can be read ({file_facts.status[0]}).", "Is --root right?")
        warn_of_unreadable(index, decoded.file_facts, session)
        chosen = np.flatnonzero(known[decoded.rows])
        if len(chosen) == 0:
            raise InputError(f"{index.root}: no image with a class of the model can be read.", "Is --root right?")
        session.stage("scoring", len(chosen))

        def done(count: int) -> None:
            session.advance(count)
            session.pause()

        device = next(model.network.parameters()).device
        loader = BatchLoader(decoded.pixels, device, statistics=model.statistics)
        rows = torch.from_numpy(chosen)
        probs = predict(model.network, loader, rows, flip=model.flip, heads=model.heads, done=done)
        session.finish()
    return decoded.file_facts, decoded.rows[chosen], probs.view(model.heads, len(rows), -1).numpy()


def _open(settings: CheckSettings) -> tuple[SavedModel, Index]:
    """Return the model of the run and the index of the batch."""
    folder = settings.model if settings.model.is_dir() else settings.model.parent
    if settings.embeddings is None:
        model = load_model(folder, choose_device(settings.device), backbone=settings.weights)
        return model, read_index(settings.source, min_classes=1)
    model = load_vector_model(folder)
    return model, read_index(replace(settings.source, images=False), min_classes=1)


def _score_vectors(
    settings: CheckSettings, model: SavedModel, index: Index, known: Bools, session: Session
) -> tuple[FileFacts, Ints, Probabilities]:
    """Score the user's own embeddings of the batch."""
    assert settings.embeddings is not None
    whole = ids_of_table(settings.source, index)
    own = OwnVectors("embeddings", read_embeddings(settings.embeddings, index, whole), model.classes)
    width = model.network.in_features
    if own.values.shape[1] != width:
        raise InputError(
            f"{settings.embeddings}: {own.values.shape[1]} numbers per row, and the model has {width}.",
            "Compute them as for the scan.",
        )
    rows = np.flatnonzero(known).astype(np.int64)
    probs = np.empty((model.heads, len(rows), len(model.classes)), dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(rows), BLOCK):
            part = torch.from_numpy(own.values[rows[start : start + BLOCK]])
            found = split_softmax(model.network(part).double(), model.heads)
            probs[:, start : start + len(part)] = found.unflatten(1, (model.heads, -1)).transpose(0, 1).float().numpy()
    return own.file_facts(), rows, probs


def _record(settings: CheckSettings, model: SavedModel, inputs: ReportInputs) -> Report:
    """Return the report of the batch; written to `settings.output` if that is set."""
    facts = ReportFacts(
        version=__version__,
        classes=model.classes,
        prior=model.prior,
        beta=model.beta,
        sieve_eps=model.sieve_eps,
        settings={"source": settings.source.identity(), "model": model.sha256},
        threads=torch.get_num_threads(),
        fingerprint=fingerprint(inputs.index, inputs.file_facts),
        label_column=inputs.index.label_column,
    )
    if settings.output is None:
        return Report(facts, Path("batch"), build_table(inputs))
    write_blocks(build_blocks(inputs), settings.output, facts.to_document())
    return Report(facts, settings.output, ParquetTable(settings.output))


def _scores(probs: Probabilities, model: SavedModel) -> Scores:
    """Return the probabilities of the heads that decide, with those of the heads that help to rank, if there are."""
    ce_probs = probs[1] if model.heads > 1 else None
    return Scores(
        probs[0],
        None,
        np.array(model.prior),
        model.beta,
        out_of_fold=model.rank_model is not None,
        ce_probs=ce_probs,
        rank_model=model.rank_model,
    )


def _decide(scores: Scores, codes: Ints, model: SavedModel) -> Verdicts:
    """Apply the closed form. P(wrong) comes from the scan's calibration, since a batch may have only one row."""
    verdicts = decide(
        scores, codes, eps=model.sieve_eps, trusted=np.zeros(len(codes), dtype=np.bool_), exact=model.exact_label
    )
    given = torch.from_numpy(verdicts.label_probability)
    trust = log_probability(given) if verdicts.suspicion is None else -torch.from_numpy(verdicts.suspicion)
    wrong = 1 - given if model.calibration is None else apply_calibration(model.calibration, trust)
    return replace(verdicts, corruption_probability=wrong.numpy())
