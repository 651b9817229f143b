"""Hugging Face imagefolder: images with a metadata.parquet per split, and a dataset card that names the splits."""

from __future__ import annotations

import json
from collections import defaultdict

import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.core.files import Document, Json
from noisesieve.exports.images import ImageWriter
from noisesieve.exports.job import ExportJob, ExportResult

COLUMNS = ("label", "suggested_label", "verdict", "corruption_probability", "margin", "id", "path", "split", "sha256")
NUMBERS = {"corruption_probability": pa.float32(), "margin": pa.float64()}
WORDS = {pa.float32(): "float32", pa.float64(): "float64", pa.int64(): "int64", pa.string(): "string"}
ALL = "train"  # the split of a dataset without splits, as `datasets` calls it


def write(job: ExportJob) -> ExportResult:
    """Write one folder per split, its files named by row number. The Parquet schema makes `label` a ClassLabel."""
    writer = ImageWriter(job)
    names = writer.write_all(lambda row: (("data", _split(row)), f"{row['row']:08d}"))
    parts: dict[str, list[Json]] = defaultdict(list)
    for name, row in zip(names, job.rows, strict=True):
        if name is not None:
            folder, _, file = name.rpartition("/")
            parts[folder].append({**row, "file_name": file})
    schema, number = _schema(job), {label: code for code, label in enumerate(_classes(job))}
    for folder, rows in parts.items():
        columns = [[number[row[name]] if name == "label" else row[name] for row in rows] for name in schema.names]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        pq.write_table(pa.table(arrays, schema=schema), job.out / folder / "metadata.parquet")
    (job.out / "README.md").write_text(_card(job, sorted(parts)), encoding="utf-8", errors="backslashreplace")
    command = f"datasets.load_dataset({str(job.shown)!r})"
    return ExportResult(sum(map(len, parts.values())), [command, *writer.notes()])


def _schema(job: ExportJob) -> pa.Schema:
    """Return the columns, with Hugging Face's own description of them in the metadata."""
    names = ["file_name", *(name for name in COLUMNS if name in job.chosen.names)]
    kinds = {name: NUMBERS.get(name, pa.int64() if name == "label" else pa.string()) for name in names}
    features: dict[str, Document] = {name: {"dtype": WORDS[kind], "_type": "Value"} for name, kind in kinds.items()}
    features["label"] = {"names": _classes(job), "_type": "ClassLabel"}
    described = json.dumps({"info": {"features": features}})
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()], metadata={"huggingface": described})


def _split(row: Json) -> str:
    return str(row.get("split") or ALL)


def _card(job: ExportJob, folders: list[str]) -> str:
    """Return the dataset card. Its head is YAML, of which JSON is a part: no label can break out of it."""
    files = [{"split": _split_name(folder), "path": f"{folder}/**"} for folder in folders]
    head = {"configs": [{"config_name": "default", "data_files": files}]}
    body = f"Rows of a noisesieve run ({job.version}): `label` is the given label, `suggested_label` the model's."
    return f"---\n{json.dumps(head, ensure_ascii=True, indent=1)}\n---\n\n{body}\n"


def _classes(job: ExportJob) -> list[str]:
    """Return the classes of the run, then labels of rows that are of none of them."""
    return list(dict.fromkeys([*job.classes, *(row["label"] for row in job.rows)]))


def _split_name(folder: str) -> str:
    """Return the name of a split; `datasets` allows letters, digits, `_` and `.`."""
    name = folder.rpartition("/")[2]
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign in "_.") else "_" for sign in name)
