"""Tables: labels stay strings, rows stay rows, errors name the line."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisesieve.core.errors import InputError
from noisesieve.core.records import Index
from noisesieve.pixels.fetch import fetch
from noisesieve.sources.containers import kind_of
from noisesieve.sources.containers import read_index as read
from noisesieve.sources.source_settings import SourceSettings


def index(path: Path, **options: Any) -> Index:
    return read(SourceSettings(path=path, **options))


def table(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_labels_stay_the_strings_they_are(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", "path,label\n1.png,NA\n2.png,007\n3.png,1e5\n4.png,True\n5.png,null\n")
    assert index(file).labels == ["NA", "007", "1e5", "True", "null"]


def test_other_columns_are_carried_and_lines_survive_quoted_newlines(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", 'path,label,note\n1.png,a,"two\nlines"\n\n2.png,b,x\n')
    found = index(file)
    assert found.carried is not None
    assert found.carried["note"].to_pylist() == ["two\nlines", "x"]
    assert found.lines is not None
    assert found.lines.tolist() == [2, 5]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("path,label\n1.png,a\n2.png\n", "a.csv:3"),
        ("path,label\n1.png,a\n2.png,b,c\n", "a.csv:3"),
        ("path,label\n1.png,a\n2.png,\n", "a.csv:3"),
        ("path,label,label\n1.png,a,b\n", "two columns"),
        ("path,kind\n1.png,a\n", "'kind'"),
        ('path,label\n1.png,a\n2.png,"b"x\n', "a.csv:3"),
        ("path,label\n../1.png,a\n", "a.csv:2.*outside"),
        ("path,label\n/etc/passwd,a\n", "a.csv:2.*outside"),
        ("path,label\na/../../1.png,a\n", "a.csv:2.*outside"),
        ("path,label\n\\x2e\\x2e/1.png,a\n", "a.csv:2.*outside"),
        ("path,label\n\\x2fetc/passwd,a\n", "a.csv:2.*outside"),
        ("path,label\n1.png,cat\n2.png,dog\n3.png,cat|dog\n", "a.csv:4.*multi-label"),
        ("path,label\n1.png,\"['cat', 'dog']\"\n2.png,dog\n", "multi-label"),
        ("path,label,xmin,ymin,xmax,ymax\n1.png,a,0,0,1,1\n", "detection"),
        ("path,label\n", "no rows"),
        ("path,label\n1.png,a\n2.png,a\n", "two classes"),
        ("", "no column"),
    ],
)
def test_a_wrong_table_is_refused_by_file_and_line(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(InputError, match=place):
        index(table(tmp_path / "a.csv", text))


def test_a_table_that_is_not_utf_8_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"path,label\n1.png,a\n2.png,\xff\n")
    with pytest.raises(InputError, match=r"a\.csv:3: not UTF-8"):
        index(tmp_path / "a.csv")


def test_paths_outside_are_taken_when_allowed(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", "path,label\n../1.png,a\n2.png,b\n")
    assert index(file, allow_outside=True).paths == ["../1.png", "2.png"]


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_a_link_that_leads_out_of_the_root_is_refused(tmp_path: Path, linked: str) -> None:
    home, secret = tmp_path / "home", tmp_path / "secret"
    for folder in (home / "in", secret):
        folder.mkdir(parents=True)
        (folder / "x.png").write_bytes(b"x")
    if linked == "file":
        (home / "a.png").symlink_to(secret / "x.png")
    else:
        (home / "sub").symlink_to(secret)
    (home / "b.png").symlink_to(home / "in/x.png")  # stays inside
    path = "a.png" if linked == "file" else "sub/x.png"
    file = table(home / "t.csv", f"path,label\nb.png,a\n{path},b\n")
    with pytest.raises(InputError, match=r"t\.csv:3.*leads out of the dataset's folder.*--allow-outside"):
        index(file)
    assert len(index(file, allow_outside=True)) == 2


def test_a_hundred_thousand_columns_are_read(tmp_path: Path) -> None:
    more = 100_000
    header = "path,label," + ",".join(f"c{i}" for i in range(more))
    file = table(tmp_path / "t.csv", f"{header}\na.png,a{',x' * more}\nb.png,b{',x' * more}\n")
    found = index(file)
    assert found.labels == ["a", "b"]
    assert found.carried is not None
    assert found.carried.num_columns == more


def test_odd_but_legal_tables_are_read(tmp_path: Path) -> None:
    assert index(table(tmp_path / "a.csv", "\n\npath,label\na:b.png,x\n..b.png,y\n")).paths == ["a:b.png", "..b.png"]
    pq.write_table(pa.table({"path": ["a", "b"], "label": [3.0, 4.0]}), tmp_path / "a.parquet")
    assert index(tmp_path / "a.parquet").labels == ["3", "4"]


def test_semicolons_and_tabs_separate_too(tmp_path: Path) -> None:
    assert index(table(tmp_path / "a.csv", "path;label\n1.png;a\n2.png;b\n")).labels == ["a", "b"]
    assert index(table(tmp_path / "a.tsv", "path\tlabel\n1.png\ta\n2.png\tb,c\n")).labels == ["a", "b,c"]


def test_ids_are_unique_even_when_a_path_stands_there_twice(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", "path,label\n1.png,a\n1.png,b\n1.png#1,a\n")
    assert len(set(index(file).ids)) == 3
    with_column = table(tmp_path / "b.csv", "path,label,key\n1.png,a,x\n2.png,b,x\n")
    with pytest.raises(InputError, match=r"b\.csv:3.*'x'"):
        index(with_column, id_column="key")


def test_trusted_rows_are_marked(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", "path,label,ok\n1.png,a,yes\n2.png,b,0\n3.png,b,\n")
    trusted = index(file, trusted_column="ok").trusted
    assert trusted is not None
    assert trusted.tolist() == [True, False, False]
    with pytest.raises(InputError, match=r"a\.csv:2.*neither yes nor no"):
        index(table(tmp_path / "a.csv", "path,label,ok\n1.png,a,maybe\n2.png,b,0\n"), trusted_column="ok")


def test_a_split_column_is_the_split(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", "path,label,split\n1.png,a,train\n2.png,b,train\n3.png,b,test\n")
    assert index(file, split="train").paths == ["1.png", "2.png"]


def test_jsonl_embeds_images_as_base64_in_both_forms(tmp_path: Path) -> None:
    rows = [
        {"image": base64.b64encode(b"one").decode(), "label": "a", "who": 1},
        {"image": {"bytes": base64.b64encode(b"two").decode(), "path": None}, "label": 7, "who": 2},
        {"image": "data:image/png;base64," + base64.b64encode(b"three").decode(), "label": "b"},
    ]
    file = table(tmp_path / "a.jsonl", "\n".join(json.dumps(row) for row in rows))
    found = index(file)
    assert [fetch(found.locate(i)) for i in range(3)] == [b"one", b"two", b"three"]
    assert found.labels == ["a", "7", "b"]
    assert found.ids == ["0", "1", "2"]
    assert found.carried is not None
    assert found.carried.column_names == ["who"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"a\.jsonl:2: not JSON"),
        ('{"path": "x", "label": "\\ud800"}', r"a\.jsonl:2: invalid Unicode"),
        ("[1]", r"a\.jsonl:2: not an object"),
        ('{"path":"x","label":["a"]}', "multi-label"),
    ],
)
def test_a_wrong_line_of_jsonl_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        index(table(tmp_path / "a.jsonl", '{"path": "1.png", "label": "a"}\n' + line))


@pytest.mark.parametrize("struct", [False, True])
def test_parquet_embeds_images_and_keeps_types(tmp_path: Path, struct: bool) -> None:
    blobs = [b"x%d" % i for i in range(10)]
    image = pa.array([{"bytes": b, "path": "p"} for b in blobs]) if struct else pa.array(blobs)
    made = pa.table({"image": image, "label": pa.array([i % 3 for i in range(10)]), "score": pa.array([0.5] * 10)})
    pq.write_table(made, tmp_path / "a.parquet", row_group_size=3)
    found = index(tmp_path / "a.parquet")
    assert [fetch(found.locate(i)) for i in range(10)] == blobs
    assert found.labels[:4] == ["0", "1", "2", "0"]
    assert found.carried is not None
    assert found.carried["score"].type == pa.float64()


def test_hugging_face_class_names_are_shown(tmp_path: Path) -> None:
    features = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    made = pa.table({"image": [b"1", b"2"], "label": [1, 0]})
    made = made.replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(made, tmp_path / "a.parquet")
    assert index(tmp_path / "a.parquet").labels == ["dog", "cat"]


def test_coco_and_other_json_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="COCO"):
        kind_of(table(tmp_path / "a.json", '{"images": [], "annotations": [], "categories": []}'))
    with pytest.raises(InputError, match="jsonl"):
        kind_of(table(tmp_path / "b.json", "[]"))


def test_a_broken_parquet_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1nonsense")
    with pytest.raises(InputError, match="not a readable Parquet"):
        index(tmp_path / "a.parquet")


def test_objects_in_jsonl_are_carried_as_text(tmp_path: Path) -> None:
    rows = [{"path": f"{i}.png", "label": "ab"[i], "meta": {}, "deep": [[[i]]]} for i in range(2)]
    carried = index(table(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))).carried
    assert carried is not None
    assert carried["meta"].to_pylist() == ["{}", "{}"]
    assert carried["deep"].to_pylist() == ["[[[0]]]", "[[[1]]]"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"path": ["a", "b"], "label": [b"\xff", b"x"]}, "contains bytes"),
        ({"path": ["a", "b"], "label": [["x"], ["y"]]}, "multi-label"),
        ({"path": ["a", "b"], "label": [0.5, 1.5]}, "fractions"),
        ({"path": [["a"], ["b"]], "label": ["x", "y"]}, "cannot be read as text"),
        ({"path": ["a", None], "label": ["x", "y"]}, "row 1: no path"),
    ],
)
def test_odd_parquet_columns_are_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        index(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "features", [[], {"label": {"_type": "ClassLabel"}}, {"label": {"_type": "ClassLabel", "names": [1]}}]
)
def test_odd_hugging_face_metadata_is_ignored(tmp_path: Path, features: Any) -> None:
    made = pa.table({"image": [b"1", b"2"], "label": [1, 0]})
    made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(made, tmp_path / "a.parquet")
    assert index(tmp_path / "a.parquet").labels == ["1", "0"]


def test_a_jsonl_is_read_the_same_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [{"path": f"{i}.png", "label": "ab"[i % 2], "n": i} for i in range(10)]
    rows[4]["late"] = "x"
    rows[1]["mixed"], rows[8]["mixed"] = 3, "three"
    rows[2]["nested"], rows[9]["nested"] = 1.5, {"a": [1]}
    rows[0]["number"], rows[7]["number"] = 1, 2.5
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = read(SourceSettings(tmp_path / "t.jsonl"))
    monkeypatch.setattr("noisesieve.sources.jsonl.BLOCK", 3)
    parts = read(SourceSettings(tmp_path / "t.jsonl"))
    assert whole.carried is not None
    assert parts.carried is not None
    assert parts.ids == whole.ids
    assert parts.carried.schema.equals(whole.carried.schema)
    assert parts.carried.to_pydict() == whole.carried.to_pydict()
    assert parts.carried["mixed"].to_pylist()[1] == "3"
    assert parts.carried["number"].to_pylist()[7] == 2.5
