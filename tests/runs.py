"""Run folders without a training: real images and files, scores that the test chooses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

import noisesieve as ns
from noisesieve import __version__
from noisesieve.commands._identity import location_of_data
from noisesieve.commands.scan_settings import ScanSettings, scan_settings
from noisesieve.core.files import write_json
from noisesieve.core.progress import Session
from noisesieve.core.text import natural_key
from noisesieve.learn.evidence import TrainedScores, TrainingFacts
from noisesieve.learn.recipes import NetworkRecipe
from noisesieve.pixels.decoder import Decoder
from noisesieve.report.build_table import ReportInputs, build_table, class_codes
from noisesieve.report.report import Report, ReportFacts, read_report
from noisesieve.report.run import RunFolder, RunRecord, fingerprint
from noisesieve.report.summarize import summarize
from noisesieve.report.summary import TrainingSummary
from noisesieve.report.write_tables import write_margin_history, write_table
from noisesieve.sieve.decide import decide
from noisesieve.sources.containers import read_index
from tests.conftest import QUICK_OPTIONS, few_digits

EPOCHS = 6


def training_facts() -> TrainingFacts:
    """The facts of a training of six epochs."""
    return TrainingFacts(
        warmup_epochs=3, epochs=EPOCHS, sieve_start=4, flip=False, held_out=0, held_out_agreement=[], loop_eps=1e-3
    )


def training_summary() -> TrainingSummary:
    """That training, as summary.json has it."""
    recipe = NetworkRecipe(
        backbone="resnet8",
        image_size=8,
        epochs=EPOCHS,
        warmup_epochs=3,
        ramp_epochs=1,
        sieve_start=4,
        batch_size=16,
        lr=0.1,
    )
    return TrainingSummary(training_facts(), "cpu", recipe)


def report_facts(classes: list[str], **changes: Any) -> ReportFacts:
    """The metadata of a report of these classes."""
    own: dict[str, Any] = {
        "prior": [1 / len(classes)] * len(classes),
        "settings": {},
        "fingerprint": "",
        "label_column": "label",
        **changes,
    }
    return ReportFacts(version="0", classes=classes, beta=2.0, sieve_eps=1e-2, threads=1, **own)


def make_run(data: Path, output: Path, wrong: dict[str, str] | None = None, **options: Any) -> Report:
    """What a scan would leave if its network were sure of every label but these: id → what it looks like."""
    wrong = wrong or {}
    settings: ScanSettings = scan_settings(data, output=output, **options)
    index = read_index(settings.source)
    with Decoder(settings.pixels, Session()) as decoder:
        file_facts = decoder.inspect(index)
    rows = np.flatnonzero(file_facts.readable).astype(np.int64)
    labels = [index.labels[i] for i in rows.tolist()]
    classes = sorted(set(labels), key=natural_key)
    codes = class_codes(labels, classes)
    seen = class_codes([wrong.get(index.ids[i], index.labels[i]) for i in rows.tolist()], classes)
    rng = np.random.default_rng(0)
    probs = np.full((len(rows), len(classes)), 0.03 / max(1, len(classes) - 1))
    probs[np.arange(len(rows)), seen] = 0.97 - 0.02 * rng.random(len(rows))
    probs /= probs.sum(axis=1, keepdims=True)
    margin_history = np.where(seen == codes, -1.0, 1.0)[None].repeat(3, axis=0).astype(np.float32)
    prior = np.bincount(codes, minlength=len(classes)) / len(codes)
    facts = training_facts()
    scores = TrainedScores(probs, np.zeros(len(rows)), prior, 2.0, facts=facts, margin_history=margin_history)
    verdicts = decide(scores, codes, eps=1e-2, trusted=np.zeros(len(rows), dtype=np.bool_))
    found = ReportInputs(index, file_facts, rows, classes, codes, scores, verdicts)
    table = build_table(found)
    identity = {**settings.identity(), "fingerprint": fingerprint(index, file_facts)}
    output.mkdir(parents=True, exist_ok=True)
    with RunFolder(output).stage() as staged:
        write_table(
            table,
            staged / "report.parquet",
            report_facts(
                classes,
                prior=prior.tolist(),
                settings=identity,
                fingerprint=str(identity["fingerprint"]),
                label_column=index.label_column,
            ).to_document(),
        )
        write_margin_history(found, staged / "margin_history.parquet")
        written = Report(report_facts(classes), staged / "report.parquet", table)
        summary = summarize(written, undecided=0, training=training_summary(), group_by=settings.group_by)
        write_json(staged / "summary.json", summary.to_document())
        location = location_of_data(settings)
        record = RunRecord(identity, version=__version__, location=location)
        RunFolder(output).complete(record, staged)
    return read_report(output)


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """Build a folder once for all test processes, and return this process's own copy, which its tests may change."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"built-{name}"
    with FileLock(f"{shared}.lock"):
        if not shared.exists():
            build(shared.with_suffix(".part"))
            shared.with_suffix(".part").rename(shared)
    mine = factory.mktemp(name) / "home"
    shutil.copytree(shared, mine)
    folder = RunFolder(mine / "run")
    known = folder.read()
    if known is not None and known.location is not None:  # the run was built under the first name
        first = str(shared.with_suffix(".part").resolve())
        location = {key: path.replace(first, str(mine.resolve())) for key, path in known.location.items()}
        write_json(mine / "run/run.json", replace(known, location=location, own=True).to_document())
    return mine


def scan_few_digits(home: Path) -> None:
    """Scan 60 images of each class of the sample data, quickly: `digits` and `run` in `home`."""
    data = few_digits(home / "digits", each=60)
    ns.scan(data, output=home / "run", cache_dir=home / "cache", **QUICK_OPTIONS)
