"""A new batch against a model that a scan left behind: no training, one decode, one forward pass.

INDEX   sources   the batch         → Index
DECODE  pixels    Index             → Pixels     at the model's size
SCORE   learn     Pixels            → Scores     the saved weights alone
DECIDE  sieve     Scores            → Verdicts   the same closed form
RECORD  report    Verdicts          → a report in the same schema
CHECK   gate      report + policy   → pass or fail
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noisesieve import __version__, pixels, report, sources
from noisesieve.dataset import report_unreadable
from noisesieve.errors import InputError, OutputError, StateError, UsageError
from noisesieve.gate import Batch, Rule, judge_batch, measure
from noisesieve.gate.policy import groups
from noisesieve.learn.feed import Feed
from noisesieve.learn.model import Model, load_model, rate
from noisesieve.learn.world import choose_device, device_problem
from noisesieve.records import Bools, Index, Scores, Verdicts
from noisesieve.report import Report
from noisesieve.report.waivers import names_of, read_waivers, waived_rows
from noisesieve.settings import CheckSettings
from noisesieve.sieve.calibrate import on_knots
from noisesieve.sieve.judge import judge
from noisesieve.watch import Watcher, warn_all


@dataclass(frozen=True)
class Checked:
    """A batch, scored and judged."""

    report: Report
    batch: Batch
    rules: list[Rule]
    base_rate: float | None  # share of the rows the scan kept that the saved weights alone would flag
    groups: list[dict[str, Any]] | None
    seconds: float
    is_table: bool

    @property
    def passed(self) -> bool:
        return all(rule.passed for rule in self.rules)


def check(settings: CheckSettings, *, watcher: Watcher, pause: Callable[[], None]) -> Checked:
    """Score a batch and hold it against the policy."""
    start = time.monotonic()
    if problem := device_problem(settings.device):
        raise UsageError(problem, "Leave --device out, or choose cpu.")
    if settings.output is not None and settings.output.exists() and not settings.force:
        raise OutputError(f"{settings.output}: is there already.", "Choose another name with -o, or pass --force.")
    trained = report.read_report(settings.model)
    device = choose_device(settings.device)
    model = load_model(trained.path.parent, device, body=settings.weights)
    index = sources.read(settings.source, least_classes=1)
    for note in index.notes:
        watcher.note(note)
    classes = set(model.classes)
    known = np.array([label in classes for label in index.labels], dtype=np.bool_)
    if not known.any():
        raise StateError(
            f"{settings.source.path}: no label is a class of the model ({', '.join(model.classes[:5])}, …).",
            "Is it the right model, and --label-column the right column?",
        )
    _require_column(index, settings.group_by)
    made = _score(settings, trained, model, index, known, device, watcher, pause)
    batch = measure(made)
    return Checked(
        report=made,
        batch=batch,
        rules=judge_batch(batch, settings.policy),
        base_rate=None if model.base_rate is None else model.base_rate["flagged"] / max(1, model.base_rate["of"]),
        groups=None if settings.group_by is None else groups(made, settings.group_by),
        seconds=time.monotonic() - start,
        is_table=index.kind != "folder",
    )


def _score(
    settings: CheckSettings,
    trained: Report,
    model: Model,
    index: Index,
    known: Bools,
    device: torch.device,
    watcher: Watcher,
    pause: Callable[[], None],
) -> Report:
    """The batch's report, written where the user wants it."""
    looks = pixels.look(index, settings.pixels, watcher, pause=pause)
    with tempfile.TemporaryDirectory() as scratch:
        decoded = pixels.decode(
            index, looks, settings.pixels, watcher, size=model.image_size, scratch=Path(scratch), pause=pause
        )
        if len(decoded.rows) == 0:
            raise InputError(f"{index.root}: no image can be read ({looks.status[0]}).", "Is --root right?")
        report_unreadable(index, decoded.looks, watcher)
        chosen = np.flatnonzero(known[decoded.rows])
        if len(chosen) == 0:
            raise InputError(f"{index.root}: no image of a class that the model knows can be read.", "Is --root right?")
        watcher.stage("scoring", len(chosen))

        def done(count: int) -> None:
            watcher.advance(count)
            pause()

        feed = Feed(decoded.pixels, device, statistics=model.statistics)
        probs = rate(model, feed, torch.from_numpy(chosen), device=device, done=done)
        watcher.finish()
    rows = decoded.rows[chosen]
    codes = report.class_codes([index.labels[row] for row in rows.tolist()], model.classes)
    scores = Scores(probs.numpy(), None, np.array(model.prior), model.beta, [], {})
    verdicts = _verdicts(scores, codes, model)
    seen = set(trained.table["sha256"].to_pylist()) - {None}
    hashes = decoded.looks.sha256
    waived, broken = waived_rows(
        read_waivers(settings.waivers), names=names_of(index), labels=index.labels, hashes=hashes
    )
    warn_all(watcher, broken)
    found = report.Findings(
        index=index,
        looks=decoded.looks,
        rows=rows,
        classes=model.classes,
        codes=codes,
        scores=scores,
        verdicts=verdicts,
        unknown=decoded.looks.readable & ~known,
        seen=np.array([sha in seen for sha in hashes], dtype=np.bool_),
        waived=waived,
    )
    facts = {
        "version": __version__,
        "classes": model.classes,
        "prior": model.prior,
        "beta": model.beta,
        "sieve_eps": model.sieve_eps,
        "settings": {"source": settings.source.identity(), "model": model.sha256},
        "threads": torch.get_num_threads(),
        "fingerprint": report.fingerprint(index, decoded.looks),
        "label_column": index.label_column,
    }
    table = report.build(found)
    if settings.output is not None:
        report.write_table(table, settings.output, facts)
    return Report(table, facts, settings.output or Path("batch"))


def _verdicts(scores: Scores, codes: Any, model: Model) -> Verdicts:
    """The closed form; the probability by what the scan learnt of these weights, since a batch may be of one row."""
    verdicts = judge(scores, codes, eps=model.sieve_eps, trusted=np.zeros(len(codes), dtype=np.bool_))
    given = torch.from_numpy(verdicts.label_probability)
    chance = 1 - given if model.calibration is None else on_knots(model.calibration, given)
    return replace(verdicts, corruption_probability=chance.numpy())


def _require_column(index: Index, column: str | None) -> None:
    """Before anything is decoded: is there a column to group by?"""
    own = [] if index.carried is None else index.carried.column_names
    known = {*report.COLUMNS, *own, *(f"user_{name}" for name in own), *(["split"] if index.splits is not None else [])}
    if column is not None and column not in known:
        raise UsageError(f"--group-by {column}: no such column.", f"There are: {', '.join(own) or 'none but ours'}.")
