"""Run folders without a training: real images and files, scores that the test chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from noisesieve import pixels, report, sources
from noisesieve.core.files import write_json
from noisesieve.core.progress import NullWatcher
from noisesieve.core.records import Scores
from noisesieve.core.settings import ScanSettings, scan_settings
from noisesieve.core.text import natural_key
from noisesieve.report import Report
from noisesieve.sieve.decide import decide

EPOCHS = 6


def make_run(data: Path, output: Path, wrong: dict[str, str] | None = None, **options: Any) -> Report:
    """What a scan would leave if its network were sure of every label but these: id → what it looks like."""
    wrong = wrong or {}
    settings: ScanSettings = scan_settings(data, output=output, **options)
    index = sources.read(settings.source)
    file_facts = pixels.inspect_files(index, settings.pixels, NullWatcher(), pause=lambda: None)
    rows = np.flatnonzero(file_facts.readable).astype(np.int64)
    labels = [index.labels[i] for i in rows.tolist()]
    classes = sorted(set(labels), key=natural_key)
    codes = report.class_codes(labels, classes)
    seen = report.class_codes([wrong.get(index.ids[i], index.labels[i]) for i in rows.tolist()], classes)
    rng = np.random.default_rng(0)
    probs = np.full((len(rows), len(classes)), 0.03 / max(1, len(classes) - 1))
    probs[np.arange(len(rows)), seen] = 0.97 - 0.02 * rng.random(len(rows))
    probs /= probs.sum(axis=1, keepdims=True)
    margin_history = np.where(seen == codes, -1.0, 1.0)[None].repeat(3, axis=0).astype(np.float32)
    prior = np.bincount(codes, minlength=len(classes)) / len(codes)
    facts = {"epochs": EPOCHS, "loop_eps": 1e-3, "warmup_epochs": 3, "sieve_start": 4, "device": "cpu"}
    scores = Scores(probs, np.zeros(len(rows)), prior, 2.0, [], facts, margin_history=margin_history)
    verdicts = decide(scores, codes, eps=1e-2, trusted=np.zeros(len(rows), dtype=np.bool_))
    found = report.ReportInputs(index, file_facts, rows, classes, codes, scores, verdicts)
    table = report.build_table(found)
    identity = {**settings.identity(), "fingerprint": report.fingerprint(index, file_facts)}
    report.write_table(
        table,
        output / "report.parquet",
        {
            "version": "0",
            "classes": classes,
            "prior": prior.tolist(),
            "beta": 2.0,
            "sieve_eps": 1e-2,
            "settings": identity,
            "threads": 1,
            "fingerprint": identity["fingerprint"],
            "label_column": index.label_column,
        },
    )
    report.write_margin_history(found, output / "margin_history.parquet")
    write_json(output / "summary.json", report.summarize(table, classes=classes, undecided=0, facts=facts))
    location = {name: str(path.resolve()) for name, path in settings.source.location().items()}
    report.RunFolder(output).write(identity, complete=True, location=location)
    return report.read_report(output)
