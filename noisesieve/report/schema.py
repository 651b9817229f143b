"""The columns of report.parquet, schema version 1, with their descriptions."""

from __future__ import annotations

import pyarrow as pa

KEY = b"noisesieve"  # key of the file's metadata
TOP = 5  # classes listed per row
UNUSABLE_CHOICE = "[unusable]"  # choice of an annotation tool: the image belongs to no class
LOW_EVIDENCE = 10  # classes with fewer examples are marked

_WORD = pa.dictionary(pa.int8(), pa.string())

# Name → type and description, in the order of the file. The descriptions are stored in the file's field metadata and
# printed in the README; a test compares the two.
_COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "row": (pa.int64(), "position in the dataset, from 0"),
    "id": (pa.string(), "unique: `--id-column`, else the path, else the row number"),
    "path": (pa.string(), "path relative to the root; null if the image is embedded in the table"),
    "label": (pa.string(), "the given label"),
    "loss": (pa.float64(), "l(y) = -ln(f[y] + eps) of the given label y"),
    "regularizer": (pa.float64(), "CR = -beta * sum over classes j of prior[j] * l(j)"),
    "regularized_loss": (pa.float64(), "loss + regularizer"),
    "threshold": (pa.float64(), "alpha = mean of l(j) over all classes + regularizer"),
    "margin": (pa.float64(), "regularized_loss - threshold; zero or above is corrupted"),
    "verdict": (
        _WORD,
        "`clean`, `corrupted`, `unreadable`, or in check `unknown` (a class that the model does not have)",
    ),
    "paper_verdict": (
        _WORD,
        "the verdict with the paper's floor, eps = 1e-8, on the same averaged and combined probabilities",
    ),
    "rank": (
        pa.int64(),
        "1 = most suspicious, by CR heads, cross-entropy heads and the noise model; on the trained path by "
        "label_probability ascending; ties by label_probability, margin, row",
    ),
    "predicted_label": (pa.string(), "the most probable class"),
    "predicted_probability": (pa.float32(), "its probability"),
    "label_probability": (pa.float32(), "probability of the given label"),
    "suggested_label": (
        pa.string(),
        "predicted_label if the verdict is corrupted and it differs from label, else null",
    ),
    "corruption_probability": (
        pa.float32(),
        "estimated probability that the label is wrong; never rises along rank among rows nobody decided; "
        "0 for trusted ones",
    ),
    "flagged_epochs": (pa.float32(), "share of the sieve epochs in which the row was dropped; null in check"),
    "low_evidence": (pa.bool_(), f"the class has fewer than {LOW_EVIDENCE} readable images"),
    "waived": (pa.bool_(), "reviewed, the label is right: not a suspect"),
    "in_training": (pa.bool_(), "the image was in the training data of the model"),
    "source_line": (pa.int64(), "line in the table, from 1; null for image folders and Parquet"),
    "status": (pa.string(), "`ok`, or the reason why the image could not be read"),
    "sha256": (pa.string(), "SHA-256 of the image's bytes"),
    "top_labels": (pa.list_(pa.string()), f"the {TOP} most probable classes"),
    "top_probabilities": (pa.list_(pa.float32()), "their probabilities"),
    "trusted": (pa.bool_(), "known to be right, by `--trusted-column` or by a person's decision: never a suspect"),
    "decided_label": (pa.string(), "the label that a person decided on, else null"),
    "decided": (pa.string(), "what a person decided: `keep`, `accept`, `relabel` or `unusable`, else null"),
    "decided_by": (pa.string(), "who decided"),
    "decided_at": (pa.string(), "when"),
}
COLUMNS: dict[str, pa.DataType] = {name: kind for name, (kind, _) in _COLUMNS.items()}
NEVER_NULL = ("row", "id", "label", "verdict", "low_evidence", "waived", "in_training", "status", "trusted")
SCORED = (  # null only where a row was not scored
    *("loss", "regularizer", "regularized_loss", "threshold", "margin", "predicted_label", "predicted_probability"),
    *("label_probability", "corruption_probability", "top_labels", "top_probabilities"),
)
DESCRIPTIONS: dict[str, str] = {name: text for name, (_, text) in _COLUMNS.items()}
SPLIT = "split"  # follows these columns if the dataset has splits; then the user's own columns


def report_schema() -> pa.Schema:
    """Return the schema of the report, with a description in the metadata of every field."""
    return pa.schema([pa.field(name, kind, metadata={"description": text}) for name, (kind, text) in _COLUMNS.items()])


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
