"""The columns of report.parquet, schema version 1. The order is the file's."""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1
KEY = b"noisesieve"  # of the file's metadata
TOP = 5
LOW_EVIDENCE = 10  # a class of fewer examples

_WORD = pa.dictionary(pa.int8(), pa.string())

COLUMNS: dict[str, pa.DataType] = {
    "row": pa.int64(),
    "id": pa.string(),
    "path": pa.string(),
    "label": pa.string(),
    "loss": pa.float64(),
    "regularizer": pa.float64(),
    "regularized_loss": pa.float64(),
    "threshold": pa.float64(),
    "margin": pa.float64(),
    "verdict": _WORD,
    "paper_verdict": _WORD,
    "rank": pa.int64(),
    "predicted_label": pa.string(),
    "predicted_probability": pa.float32(),
    "label_probability": pa.float32(),
    "suggested_label": pa.string(),
    "corruption_probability": pa.float32(),
    "flagged_epochs": pa.float32(),
    "low_evidence": pa.bool_(),
    "waived": pa.bool_(),
    "in_training": pa.bool_(),
    "source_line": pa.int64(),
    "status": pa.string(),
    "sha256": pa.string(),
    "top_labels": pa.list_(pa.string()),
    "top_probabilities": pa.list_(pa.float32()),
}
SPLIT = "split"  # after these, where the dataset has splits; then the user's own columns

HISTORY = pa.schema(
    {
        "epoch": pa.int64(),
        "phase": pa.string(),
        "beta": pa.float64(),
        "learning_rate": pa.float64(),
        "train_loss": pa.float64(),
        "kept": pa.int64(),
        "flagged": pa.int64(),
        "undecided": pa.int64(),
        "steps": pa.int64(),
        "skipped_steps": pa.int64(),
        "train_seconds": pa.float64(),
        "score_seconds": pa.float64(),
        "images_per_second": pa.float64(),
    }
)


def carried_name(name: str, taken: set[str]) -> str:
    """The report's name for a column of the user's: with `user_` before it where the report has that name."""
    while name in taken:
        name = f"user_{name}"
    return name
