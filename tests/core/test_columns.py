"""Columns in Arrow read like the lists that they replace."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from noisesieve.core.columns import Hashes, Texts
from noisesieve.core.csv_file import csv_separator, read_csv_file, write_csv_rows
from noisesieve.core.parquet_file import ParquetTable
from noisesieve.core.records import FileFacts, Index

NAMES = ["b", "a", None, "ü", "a", "", "b"]


@pytest.mark.parametrize("few", [False, True])
def test_texts_read_like_a_list(few: bool) -> None:
    column = Texts(NAMES, few=few)
    assert column == NAMES
    assert list(column) == NAMES
    assert (column[3], column[-1], column[1:3]) == ("ü", "b", ["a", None])
    assert column.codes(["a", "b"]).tolist() == [1, 0, -1, -1, 0, -1, 1]
    assert [name for name in column.distinct() if name is not None] == ["b", "a", "ü", ""]
    assert column.find("ü") == 3
    assert column.find("x") == -1
    assert column.take(np.array([3, 2, 0])) == ["ü", None, "b"]
    assert column.changed({2: "new", 0: "ü"}) == ["ü", "a", "new", "ü", "a", "", "b"]
    assert column.places(Texts(["ü", "x", "b"])).tolist() == [3, -1, 0]
    assert column.missing.tolist() == [False, False, True, False, False, False, False]
    assert column.same_as(Texts(NAMES, few=not few))
    assert not column.same_as(Texts([*NAMES[:-1], "c"]))


def test_the_first_repeated_text_is_found() -> None:
    assert Texts(["a", "b", "c"]).first_repeated() is None
    assert Texts(["a", "b", "a", "b"]).first_repeated() == 2


def test_texts_of_a_sliced_and_chunked_array_are_those_of_the_slice() -> None:
    chunks = pa.chunked_array([["x", "a"], ["b", None, "y"]]).slice(1, 3)
    assert Texts(chunks) == ["a", "b", None]
    coded = pa.chunked_array([pa.array(["x", "a"]).dictionary_encode(), pa.array(["b", "a"]).dictionary_encode()])
    assert Texts(coded.slice(1, 3)) == ["a", "b", "a"]


def test_hashes_read_as_hexadecimal_texts() -> None:
    known = [hashlib.sha256(bytes([i])).hexdigest() for i in range(3)]
    values = [known[1], None, known[0], known[1], known[2]]
    column = Hashes(values)
    assert column == values
    assert column.to_arrow().to_pylist() == values
    assert Hashes(pa.chunked_array([values[:2], values[2:]])) == values
    assert column.codes().tolist() == [0, -1, 1, 0, 2]
    assert column.is_in(Hashes(known[:1])).tolist() == [False, False, True, False, False]
    assert column.differ(Hashes([known[1], known[1], *values[2:]])).tolist() == [False, True, False, False, False]
    assert Hashes.of_bytes(column.raw(), column.missing) == values
    assert Hashes(column.array[1:4]).to_arrow().to_pylist() == values[1:4]
    with pytest.raises(ValueError, match=r"SHA-256|hex"):
        Hashes(pa.array(["short"]))


def test_an_index_of_lists_becomes_columns_and_takes_rows() -> None:
    index = Index("x", "csv", Path(), ["1", "2", "3"], [None, "b", "c"], ["k", "l", "k"], lambda row: row)  # type: ignore[arg-type]
    part = index.take(np.array([2, 0]))
    assert (part.ids, part.paths, part.labels) == (["3", "1"], ["c", None], ["k", "k"])
    assert [part.locate(i) for i in (0, 1)] == [2, 0]


def test_a_status_can_be_changed_by_content() -> None:
    sha = [hashlib.sha256(bytes([i % 2])).hexdigest() for i in range(4)]
    facts = FileFacts(sha, ["ok"] * 4, np.ones(4, dtype=np.int64), np.ones(4, dtype=np.int64))
    assert facts.with_status({}) is facts
    changed = facts.with_status({sha[1]: "broken"})
    assert changed.status == ["ok", "broken", "ok", "broken"]
    assert changed.readable.tolist() == [True, False, True, False]


def test_rows_of_a_csv_are_written_as_one_by_one(tmp_path: Path) -> None:
    rows = [
        {"id": "=1+1", "n": 1.5, "k": 2, "flag": True, "top": ["a", 'b"', "ü"], "p": [0.5, 1e-7], "d": "x"},
        {"id": 'two "quoted", cells\n', "n": None, "k": None, "flag": False, "top": None, "p": None, "d": "-y"},
        {"id": "'=kept", "n": float("inf"), "k": -3, "flag": None, "top": [], "p": [], "d": None},
    ]
    kinds = {"id": pa.string(), "n": pa.float64(), "k": pa.int64(), "flag": pa.bool_(), "top": pa.list_(pa.string())}
    schema = pa.schema({**kinds, "p": pa.list_(pa.float32()), "d": pa.dictionary(pa.int8(), pa.string())})
    table = pa.Table.from_pylist(rows, schema=schema)
    with (tmp_path / "a.csv").open("wb") as file:
        write_csv_rows(file, [table.slice(0, 1), table.slice(1)], names=table.column_names, guard=True)
    found = read_csv_file(tmp_path / "a.csv", csv_separator(tmp_path / "a.csv"))
    assert found.column("id") == ["'=1+1", 'two "quoted", cells\n', "''=kept"]
    assert [float(cell or "nan") for cell in found.column("n")[::2]] == [1.5, float("inf")]
    assert found.column("k") == ["2", "", "-3"]
    assert found.column("flag") == ["true", "false", ""]
    assert [json.loads(cell or "null") for cell in found.column("top")] == [["a", 'b"', "ü"], None, []]
    assert next(json.loads(cell or "null") for cell in found.column("p")) == pytest.approx([0.5, 1e-7])
    assert found.column("d") == ["x", "'-y", ""]


def test_a_column_of_one_empty_cell_is_no_empty_line(tmp_path: Path) -> None:
    with (tmp_path / "a.csv").open("wb") as file:
        write_csv_rows(file, [pa.table({"x": ["a", "", "b"]})], names=["x"])
    assert read_csv_file(tmp_path / "a.csv", ",").column("x") == ["a", "", "b"]


def test_rows_of_a_parquet_file_are_taken_in_any_order(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    table = pa.table({"n": np.arange(1000), "words": [[str(i), "x"] for i in range(1000)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=64)
    rows = np.array([999, 3, 3, 64, 63, 500])
    with ParquetTable(tmp_path / "t.parquet") as opened:
        assert opened.take(rows).equals(table.take(pa.array(rows)))
        assert opened.take(rows[:0]).num_rows == 0
        assert opened.read(["words"])["words"].to_pylist() == table["words"].to_pylist()
        assert sum(len(group) for group in opened.groups()) == 1000
