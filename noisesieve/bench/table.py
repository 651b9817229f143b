"""The figures of `bench` and `bench --ablation`, as JSON values, table cells and Markdown."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from noisesieve.bench.methods import MethodResult
from noisesieve.bench.metrics import area_under_roc, average_precision, calibration, detection
from noisesieve.core.files import Json
from noisesieve.core.records import Bools

COLUMNS = ("flagged", "precision", "recall", "f1", "average_precision", "auc", "seconds", "passes")
HEADINGS = ("method", "flagged", "precision", "recall", "F1", "AP", "AUC", "seconds", "passes")
ABLATION_HEADINGS = ("method", "accuracy", "clean rows", "seconds", "passes")


def figures_of(result: MethodResult, known: Bools, wrong: Bools) -> Json:
    """Return the figures of one method on the rows whose right label is known."""
    suspicion, hits = result.suspicion[known], detection(result.flagged[known], wrong)
    probability = None if result.probability is None else result.probability[known]
    return {
        "flagged": hits.flagged,
        "precision": hits.precision,
        "recall": hits.recall,
        "f1": hits.f1,
        "average_precision": average_precision(suspicion, wrong),
        "auc": area_under_roc(suspicion, wrong),
        "seconds": result.seconds,
        "passes": result.passes,
        "ece": None if probability is None else calibration(probability, wrong).ece,
        "noise_rate_error": None if probability is None else float(probability.mean() - wrong.mean()),
    }


def machine_facts(device: torch.device) -> Json:
    """Return the hardware and versions that figures were measured with."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    """Return the name of the processor, as far as the system provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def table_of(document: Json) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return the headings and cells of a bench or an ablation."""
    if _is_ablation(document):
        return ABLATION_HEADINGS, [_ablation_cells(row) for row in document["methods"]]
    return HEADINGS, [method_cells(row) for row in document["methods"]]


def _is_ablation(document: Json) -> bool:
    return "test_rows" in document


def method_cells(row: Json) -> list[str]:
    """Return the figures of one method as text, in the order of HEADINGS."""
    return [row["method"], *(_cell(name, row[name]) for name in COLUMNS)]


def _ablation_cells(row: Json) -> list[str]:
    return [
        row["method"],
        f"{row['accuracy']:.3f}",
        f"{row['clean_rows']:,}",
        f"{row['seconds']:.0f}",
        f"{row['passes']:.1f}",
    ]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name == "flagged":
        return f"{value:,}"
    if name == "seconds":
        return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
    return f"{value:.1f}" if name == "passes" else f"{value:.3f}"


def as_markdown(document: Json) -> str:
    """Return the table for a README, below a line with dataset and hardware."""
    machine, recipe = document["machine"], document["recipe"]
    if _is_ablation(document):
        what = f"{document['test_rows']:,} test images"
    else:
        share = document["wrong"] / document["measured"]
        what = f"{document['classes']} classes, {share:.1%} wrong labels"
    headings, rows = table_of(document)
    lines = [
        f"{document['dataset']}: {document['examples']:,} images, {what}, seed {document['seed']}; "
        f"{recipe['backbone']} at {recipe['image_size']} px; "
        f"{machine['processor']}, {machine['threads']} thread{'s' * (machine['threads'] != 1)}, "
        f"{machine['device']}, torch {machine['torch']}, noisesieve {document['version']}.",
        "",
        f"| {' | '.join(headings)} |",
        f"|---|{'---:|' * (len(headings) - 1)}",
        *(f"| {' | '.join(cells)} |" for cells in rows),
    ]
    return "\n".join(lines) + "\n"
