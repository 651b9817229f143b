"""Write the tables of a run: atomically, one row group at a time, with the same bytes for the same run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.core.files import Json, atomic_write
from noisesieve.learn.evidence import EpochRow
from noisesieve.report.build_table import ReportInputs
from noisesieve.report.schema import HISTORY, KEY
from noisesieve.report.summary import SCHEMA_VERSION

ROW_GROUP = 65_536
MOST_MARGINS = 10**7  # rows times epochs up to which margin_history.parquet has every row


def write_table(table: pa.Table, path: Path, facts: Json | None = None) -> None:
    """Write a table with zstd compression, one row group at a time."""
    blocks = (table.slice(start, ROW_GROUP) for start in range(0, max(1, len(table)), ROW_GROUP))
    write_blocks(blocks, path, facts)


def write_blocks(blocks: Iterable[pa.Table], path: Path, facts: Json | None = None) -> None:
    """Write tables of up to ROW_GROUP rows as the row groups of one file, with `facts` as its metadata."""
    metadata = None
    if facts is not None:
        text = json.dumps({"schema_version": SCHEMA_VERSION, **facts}, sort_keys=True, ensure_ascii=True)
        metadata = {KEY: text.encode()}
    writer: pq.ParquetWriter | None = None
    with atomic_write(path) as file:
        try:
            for block in blocks:
                whole = block if metadata is None else block.replace_schema_metadata(metadata)
                writer = writer or pq.ParquetWriter(file, whole.schema, compression="zstd")
                writer.write_table(whole, row_group_size=ROW_GROUP)
        finally:
            if writer is not None:
                writer.close()


def write_history(history: Sequence[EpochRow], path: Path) -> None:
    """Write history.parquet, one row per epoch."""
    write_table(pa.Table.from_pylist([vars(row) for row in history], schema=HISTORY), path)


def write_early_clean(inputs: ReportInputs, path: Path) -> None:
    """Write the clean / corrupted split that `retrain` uses, by row of the report. Only the preset cifar has one."""
    if inputs.scores.early_clean is not None:
        clean = np.zeros(len(inputs.index), dtype=np.bool_)
        clean[inputs.rows] = inputs.scores.early_clean
        write_table(pa.table({"clean": clean}), path)


def write_margin_history(inputs: ReportInputs, path: Path) -> None:
    """Write the margin of every row in the last epochs; of a large dataset only of rows that were ever flagged."""
    margin_history = inputs.scores.margin_history
    if margin_history is None:
        return
    epochs, rows = len(margin_history), np.arange(len(inputs.rows))
    if epochs * len(rows) > MOST_MARGINS:
        ever = inputs.verdicts.corrupted.copy()
        for margins in margin_history:
            ever |= margins >= 0
        rows = np.flatnonzero(ever)

    def blocks() -> Iterator[pa.Table]:
        for start in range(0, max(1, len(rows)), ROW_GROUP):
            part = rows[start : start + ROW_GROUP]
            flat = pa.array(np.stack([margins[part] for margins in margin_history], axis=1).reshape(-1))
            lists = pa.FixedSizeListArray.from_arrays(flat, epochs)
            yield pa.table({"row": pa.array(inputs.rows[part]), "margins": lists})

    write_blocks(blocks(), path)
