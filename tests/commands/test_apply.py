"""`apply`: decisions of every kind become a corrected dataset, or a refusal that names them and writes nothing."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import noisesieve as ns
from tests.conftest import Run, paint, validate
from tests.runs import make_run

WRONG = {"red/0.png": "green", "red/1.png": "blue", "blue/2.png": "red"}


@pytest.fixture
def run(colours: Path, tmp_path: Path) -> Path:
    return make_run(colours, tmp_path / "run", WRONG).path.parent


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def state(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_becomes_a_table_with_an_audit_log(inside: Run, run: Path, colours: Path, tmp_path: Path) -> None:
    before = state(colours)
    decisions = write(tmp_path / "d.csv", "path,label\nred/0.png,green\nred/1.png,red\nblue/2.png,green\n")
    done = inside("apply", run, decisions, "-o", tmp_path / "new.csv", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    validate(found, "apply")
    assert (found["decided"], found["changed"], found["left_out"], found["examples"]) == (3, 2, 0, 120)
    assert found["decisions"] == {"accept": 1, "keep": 1, "relabel": 1}
    new = pd.read_csv(tmp_path / "new.csv", dtype=str)
    assert len(new) == 120
    labels = dict(zip(new["path"], new["label"], strict=True))
    assert labels["colours/red/0.png"] == "green"  # the images lie below the new table
    assert labels["colours/red/1.png"] == "red"
    assert labels["colours/blue/2.png"] == "green"
    log = pd.read_csv(tmp_path / "new.audit.csv", dtype=str, keep_default_na=False)
    assert log["decision"].tolist() == ["relabel", "accept", "keep"]  # in the dataset's order
    assert log["old_label"].tolist() == ["blue", "red", "red"]
    assert log["new_label"].tolist() == ["green", "green", "red"]
    assert log["place"].tolist() == [f"{decisions}:4", f"{decisions}:2", f"{decisions}:3"]
    assert json.loads((tmp_path / "new.summary.json").read_text())["changed"] == 2
    assert state(colours) == before
    again = inside("scan", tmp_path / "new.csv", "--dry-run", "--json")
    assert json.loads(again.stdout)["examples"] == 120


@pytest.mark.parametrize("how", ["copy", "link"])
def test_a_folder_becomes_a_corrected_tree(how: str, inside: Run, run: Path, tmp_path: Path) -> None:
    decisions = write(tmp_path / "d.csv", "id,decision,label\nred/0.png,accept,green\nred/1.png,unusable,\n")
    done = inside("apply", run, decisions, "-o", tmp_path / "tree", "--tree", how)
    assert done.returncode == 0, done.stderr
    assert "1 files got a row number" in done.stdout
    tree = tmp_path / "tree"
    assert not (tree / "red/0.png").exists()
    assert not (tree / "red/1.png").exists()
    moved = [file for file in (tree / "green").iterdir() if file.name.startswith("0-row")]
    assert len(moved) == 1
    assert moved[0].is_symlink() == (how == "link")
    assert len(list(tree.rglob("*.png"))) == 119
    assert (tmp_path / "tree.audit.csv").exists()
    assert json.loads(inside("scan", tree, "--allow-outside", "--dry-run", "--json").stdout)["examples"] == 119


def test_a_split_folder_keeps_its_splits(inside: Run, tmp_path: Path) -> None:
    for split in ("train", "val"):
        for c, name in enumerate(("a", "b")):
            for i in range(3):
                paint(tmp_path / f"d/{split}/{name}/{i}.png", (200 * c, 9, 9), seed=i)
    run = make_run(tmp_path / "d", tmp_path / "run", {"train/a/0.png": "b"}, split="train").path.parent
    decisions = write(tmp_path / "d.csv", "id,label\ntrain/a/0.png,b\n")
    assert inside("apply", run, decisions, "-o", tmp_path / "tree", "--tree", "copy").returncode == 0
    assert (tmp_path / "tree/train/b/0-row0.png").exists()
    assert len(list((tmp_path / "tree/val").rglob("*.png"))) == 6  # what was not scanned is not lost


CSV = (
    '\ufeffpath;"label";annotator;note\r\n0.png;cat;ann;"a ""quoted"" note"\r\n\r\n'
    '1.png;"cat";bob;=1+1\r\n2.png;dog;;\r\n3.png;dog;x;"two\r\nlines"\r\n'
)


def test_a_csv_keeps_every_byte_but_the_labels_and_one_more_column(inside: Run, tmp_path: Path) -> None:
    for i in range(4):
        paint(tmp_path / f"{i}.png", (60 * i, 90, 10), seed=i)
    table = write(tmp_path / "t.csv", CSV)
    run = make_run(table, tmp_path / "run", {"1.png": "dog"}).path.parent
    decisions = write(tmp_path / "d.csv", "path,label\n1.png,dog\n3.png,cat\n")
    done = inside("apply", run, decisions, "-o", tmp_path / "new.csv")
    assert done.returncode == 0, done.stderr
    expected = CSV.replace('1.png;"cat"', "1.png;dog").replace("3.png;dog", "3.png;cat")
    new = (tmp_path / "new.csv").read_bytes().decode()
    assert new.startswith('\ufeffpath;"label";annotator;note;noisesieve_decided\r\n')
    plain = re.sub(r";(accept|relabel) - [0-9a-f]{16}(?=\r\n)", ";", new).replace(";noisesieve_decided", ";")
    assert re.sub(r";(?=\r\n(\r|\d|$))", "", plain) == expected
    assert table.read_bytes().decode() == CSV
    gone = write(tmp_path / "e.csv", "path,decision,label\n0.png,unusable,\n3.png,unusable,\n")
    assert inside("apply", run, gone, "-o", tmp_path / "less.csv").returncode == 0
    lines = CSV.split("\r\n")
    assert (tmp_path / "less.csv").read_bytes().decode() == "\r\n".join([lines[0], lines[3], lines[4], ""])


def test_the_table_knows_where_its_images_are(inside: Run, colours: Path, tmp_path: Path) -> None:
    names = sorted(path.relative_to(colours).as_posix() for path in colours.rglob("*.png"))
    table = tmp_path / "t.tsv"
    with table.open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([("path", "label"), *((n, n.split("/")[0]) for n in names)])
    run = make_run(table, tmp_path / "run", WRONG, root=colours).path.parent
    decisions = write(tmp_path / "d.csv", "path,label\nred/0.png,green\n")
    out = tmp_path / "elsewhere/new.tsv"
    found = json.loads(inside("apply", run, decisions, "-o", out, "--json").stdout)
    assert Path(found["root"]) == colours.resolve()
    assert json.loads(inside("scan", out, "--root", found["root"], "--dry-run", "--json").stdout)["examples"] == 120
    wrong = inside("apply", run, decisions, "-o", tmp_path / "new.csv")
    assert wrong.returncode == 2
    assert ".tsv" in wrong.stderr


def test_jsonl_keeps_its_lines_and_the_types_of_its_labels(inside: Run, tmp_path: Path) -> None:
    lines = []
    for i in range(4):
        paint(tmp_path / f"{i}.png", (60 * i, 90, 10), seed=i)
        lines.append(f'{{"path": "{i}.png",  "label": {i % 2}, "tags": ["a", {i}]}}\n')
    write(tmp_path / "t.jsonl", "".join(lines))
    run = make_run(tmp_path / "t.jsonl", tmp_path / "run", {"0.png": "1"}).path.parent
    decisions = write(tmp_path / "d.csv", "path,label,decision\n0.png,1,accept\n2.png,,unusable\n")
    assert inside("apply", run, decisions, "-o", tmp_path / "new.jsonl").returncode == 0
    new = (tmp_path / "new.jsonl").read_text().splitlines(keepends=True)
    first = json.loads(new[0])
    assert first.pop("noisesieve_decided").startswith("accept - ")
    assert first == {"path": "0.png", "label": 1, "tags": ["a", 0]}
    assert new[1:] == [lines[1], lines[3]]
    odd = write(tmp_path / "o.csv", "path,label\n0.png,one\n")
    done = inside("apply", run, odd, "--new-classes", "-o", tmp_path / "odd.jsonl")
    assert done.returncode == 3
    assert "not of type int" in done.stderr
    assert not (tmp_path / "odd.jsonl").exists()


@pytest.mark.parametrize("kind", ["string", "int", "dictionary", "classlabel"])
def test_parquet_keeps_its_schema_its_metadata_and_its_images(
    kind: str, inside: Run, colours: Path, tmp_path: Path
) -> None:
    files = sorted(colours.rglob("*.png"))
    names = ["blue", "green", "red"]
    codes = [names.index(file.parent.name) for file in files]
    labels: pa.Array = {
        "string": lambda: pa.array([names[c] for c in codes]),
        "int": lambda: pa.array(codes, pa.int16()),
        "dictionary": lambda: pa.array([names[c] for c in codes]).dictionary_encode(),
        "classlabel": lambda: pa.array(codes, pa.int64()),
    }[kind]()
    table = pa.table(
        {
            "note": [f"n{i}" for i in range(120)],
            "image": pa.array([{"bytes": file.read_bytes(), "path": None} for file in files]),
            "label": labels,
        }
    )
    if kind == "classlabel":
        info = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=50)
    green, red = ("1", "2") if kind == "int" else ("green", "red")
    run = make_run(tmp_path / "t.parquet", tmp_path / "run", {"0": green}).path.parent
    decisions = write(
        tmp_path / "d.csv", f"id,label,decision\n0,{green},accept\n1,,unusable\n119,{red},keep\n60,{red},relabel\n"
    )
    done = inside("apply", run, decisions, "-o", tmp_path / "new.parquet")
    assert done.returncode == 0, done.stderr
    new = pq.read_table(tmp_path / "new.parquet")
    assert new.drop_columns(["noisesieve_decided"]).schema.equals(table.schema)
    if kind == "classlabel":
        features = json.loads(new.schema.metadata[b"huggingface"])["info"]["features"]
        assert features["noisesieve_decided"] == {"dtype": "string", "_type": "Value"}
        assert features["label"] == {"names": names, "_type": "ClassLabel"}
    assert len(new) == 119
    expected = list(table["label"].to_pylist())
    expected[0] = 1 if kind in ("int", "classlabel") else "green"
    expected[60] = 2 if kind in ("int", "classlabel") else "red"
    del expected[1]
    assert new["label"].to_pylist() == expected
    kept = [i for i in range(120) if i != 1]
    assert new["image"].to_pylist() == [table["image"][i].as_py() for i in kept]
    assert new["note"].to_pylist() == [f"n{i}" for i in kept]


def test_every_problem_is_named_and_nothing_is_written(inside: Run, run: Path, tmp_path: Path) -> None:
    decisions = write(
        tmp_path / "d.csv",
        "path,label\nred/0.png,green\nred/0.png,blue\nred/nobody.png,red\nred/1.png,yellow\nblue/2.png,red\n",
    )
    done = inside("apply", run, decisions, "-o", tmp_path / "new.csv")
    assert done.returncode == 3
    for text in ("'red/0.png': 'green' in", "d.csv:2, and 'blue' in", "'red/nobody.png' is not in the run", "'yellow'"):
        assert text in done.stderr
    assert "3 decisions cannot be applied" in done.stderr
    assert "blue/2.png" not in done.stderr
    assert not list(tmp_path.glob("new*"))
    allowed = write(tmp_path / "e.csv", "path,label\nred/1.png,yellow\n")
    assert inside("apply", run, allowed, "--new-classes", "-o", tmp_path / "new.csv").returncode == 0
    assert "yellow" in (tmp_path / "new.csv").read_text()


def test_two_reviewers_who_agree_are_one_decision(inside: Run, run: Path, tmp_path: Path) -> None:
    one = write(tmp_path / "a.csv", "path,label\nred/0.png,green\n")
    two = write(tmp_path / "b.csv", "path,label\nred/0.png,green\nred/1.png,blue\n")
    found = json.loads(inside("apply", run, one, two, "-o", tmp_path / "new.csv", "--json").stdout)
    assert found["decided"] == 2


def test_stale_decisions_are_refused(inside: Run, run: Path, colours: Path, tmp_path: Path) -> None:
    report = ns.read_report(run).to_pandas().set_index("id")
    sha = report.loc["red/0.png", "sha256"]
    good = write(tmp_path / "g.csv", f"id,sha256,given,decision,label\nred/0.png,{sha},red,accept,green\n")
    other = write(tmp_path / "o.csv", f"id,sha256,given,decision,label\nred/0.png,{'0' * 64},red,accept,green\n")
    given = write(tmp_path / "l.csv", f"id,sha256,given,decision,label\nred/0.png,{sha},blue,accept,green\n")
    for file, text in ((other, "another image"), (given, "was 'blue' then, and is 'red'")):
        done = inside("apply", run, file, "-o", tmp_path / "new.csv")
        assert done.returncode == 5
        assert text in done.stderr
    paint(colours / "red/0.png", (1, 2, 3), seed=9)
    done = inside("apply", run, good, "-o", tmp_path / "new.csv")
    assert done.returncode == 5
    assert "changed since the run" in done.stderr
    (colours / "red/9.png").rename(colours / "blue/900.png")
    done = inside("apply", run, good, "-o", tmp_path / "new.csv")
    assert done.returncode == 5
    assert not list(tmp_path.glob("new*"))


def test_suggestions_are_taken_above_a_probability_and_marked(inside: Run, run: Path, tmp_path: Path) -> None:
    decisions = write(tmp_path / "d.csv", "path,label\nred/0.png,red\n")
    done = inside("apply", run, decisions, "--accept-above", "0", "-o", tmp_path / "new.csv")
    assert done.returncode == 0, done.stderr
    assert "2 of these were accepted by --accept-above" in done.stdout
    log = pd.read_csv(tmp_path / "new.audit.csv").set_index("id")
    assert log.loc["red/0.png", "decision"] == "keep"  # a person's word is not overruled
    assert log.loc["red/1.png", ["decision", "new_label", "source", "by"]].tolist() == [
        "accept (automatic)",
        "blue",
        "accept-above 0",
        "noisesieve",
    ]
    nobody = inside("apply", run, "-o", tmp_path / "x.csv")
    assert nobody.returncode == 2
    none = inside("apply", run, "--accept-above", "1", "-o", tmp_path / "x.csv")
    assert none.returncode == 3


def test_a_label_studio_export_comes_back(inside: Run, run: Path, tmp_path: Path) -> None:
    assert inside("export", run, "--to", "label-studio", "-o", tmp_path / "ls").returncode == 0
    tasks = json.loads((tmp_path / "ls/tasks.json").read_text())
    for i, task in enumerate(tasks):
        result = {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": ["green"]}}
        task |= {"id": i + 10, "annotations": [{"result": [result], "completed_by": {"id": 3, "email": "ann@x.org"}}]}
    tasks[1]["annotations"][0]["was_cancelled"] = True
    tasks[2]["annotations"] = []
    full = write(tmp_path / "project.json", json.dumps(tasks))
    found = json.loads(inside("apply", run, full, "-o", tmp_path / "new.csv", "--json").stdout)
    assert (found["decided"], found["undecided"]) == (1, 2)
    log = pd.read_csv(tmp_path / "new.audit.csv")
    assert log["by"].tolist() == ["ann@x.org"]
    assert log["source"].tolist() == ["label-studio"]
    flat = [{**task["data"], "id": 1, "label": "blue", "annotator": 4} for task in tasks]
    least = write(tmp_path / "min.json", json.dumps(flat))
    assert inside("apply", run, least, "-o", tmp_path / "min.csv").returncode == 0
    frame = pd.DataFrame(flat)
    frame.to_csv(tmp_path / "ls.csv", index=False)
    done = inside("apply", run, tmp_path / "ls.csv", "-o", tmp_path / "lsnew.csv", "--json")
    assert json.loads(done.stdout)["decided"] == 3
    conflicting = json.loads(full.read_text())
    second = json.loads(json.dumps(conflicting[0]["annotations"][0]))
    second["result"][0]["value"]["choices"] = ["blue"]
    conflicting[0]["annotations"].append(second)
    done = inside("apply", run, write(tmp_path / "torn.json", json.dumps(conflicting)), "-o", tmp_path / "torn.csv")
    assert done.returncode == 3
    assert "'green' by ann@x.org in" in done.stderr
    assert "task 10" in done.stderr


def test_a_cvat_export_comes_back(inside: Run, run: Path, tmp_path: Path) -> None:
    assert inside("export", run, "--to", "cvat", "-o", tmp_path / "c.xml").returncode == 0
    text = (tmp_path / "c.xml").read_text()
    found = json.loads(inside("apply", run, tmp_path / "c.xml", "-o", tmp_path / "new.csv", "--json").stdout)
    assert found["decisions"] == {"accept (untouched)": 3}  # nobody need have looked at our own tags
    somebody = write(tmp_path / "s.xml", text.replace('source="auto"', 'source="manual"'))
    found = json.loads(inside("apply", run, somebody, "-o", tmp_path / "s.csv", "--json").stdout)
    assert found["decisions"] == {"accept": 3}
    assert set(pd.read_csv(tmp_path / "s.audit.csv")["source"]) == {"cvat"}
    bomb = write(
        tmp_path / "b.xml", '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "b">]><annotations>&b;</annotations>'
    )
    assert inside("apply", run, bomb, "-o", tmp_path / "x.csv").returncode == 3
    assert inside("apply", run, write(tmp_path / "o.xml", "<html/>"), "-o", tmp_path / "x.csv").returncode == 3
    assert inside("apply", run, write(tmp_path / "p.xml", text[:300]), "-o", tmp_path / "x.csv").returncode == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("d.csv", ""),
        ("d.csv", "path\nred/0.png\n"),
        ("d.csv", "path,label\nred/0.png\n"),
        ("d.csv", 'path,label\n"red/0.png,green\n'),
        ("d.csv", "path,label,decision\nred/0.png,green,maybe\n"),
        ("d.csv", "path,label,decision\nred/0.png,,accept\n"),
        ("d.json", "{}"),
        ("d.json", "[1]"),
        ("d.json", "[" * 100_000),
        ("d.json", '[{"data": {}}]'),
        ("d.json", '[{"image": "red/0.png", "label": ["a", "b"]}]'),
        ("d.json", '[{"data": {"image": "red/0.png"}, "annotations": 5}]'),
        ("d.xml", '<?xml version="1.0" encoding="foo"?><annotations/>'),
        ("d.csv", "path,label,label\nred/0.png,red,green\n"),
        ("d.docx", "x"),
        ("gone.csv", None),
    ],
)
def test_a_file_that_is_no_decisions_is_refused(
    name: str, text: str | None, inside: Run, run: Path, tmp_path: Path
) -> None:
    if text is not None:
        write(tmp_path / name, text)
    done = inside("apply", run, tmp_path / name, "-o", tmp_path / "new.csv")
    assert done.returncode == 3
    assert name in done.stderr
    assert not list(tmp_path.glob("new*"))


def test_nothing_overwrites_the_dataset_or_an_earlier_result(
    inside: Run, run: Path, colours: Path, tmp_path: Path
) -> None:
    decisions = write(tmp_path / "d.csv", "path,label\nred/0.png,green\n")
    assert inside("apply", run, decisions, "-o", colours / "new.csv").returncode == 4
    assert inside("apply", run, decisions, "-o", tmp_path / "new.csv").returncode == 0
    assert inside("apply", run, decisions, "-o", tmp_path / "new.csv").returncode == 4
    assert inside("apply", run, decisions, "-o", tmp_path / "new.csv", "--force").returncode == 0


def test_spreadsheet_quotes_come_off_again(inside: Run, tmp_path: Path) -> None:
    labels = ["=a", "-b", "'=c"]
    rows = [(f"{label}{i}.png", label) for label in labels for i in range(2)]
    for name, _ in rows:
        paint(tmp_path / "data" / name, (len(name), 90, 10), seed=len(name))
    with (tmp_path / "data/t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    run = make_run(tmp_path / "data/t.csv", tmp_path / "run", {"=a0.png": "-b"}).path.parent
    inside("export", run, "--to", "csv", "--only", "all", "-o", tmp_path / "all.csv")
    frame = pd.read_csv(tmp_path / "all.csv", dtype=str, keep_default_na=False)
    frame.loc[frame["path"] == "'=a0.png", "label"] = "'-b"
    frame.to_csv(tmp_path / "edited.csv", index=False)
    done = inside("apply", run, tmp_path / "edited.csv", "-o", tmp_path / "data/new.csv", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["changed"] == 1
    new = pd.read_csv(tmp_path / "data/new.csv", dtype=str)
    assert new["label"].tolist() == ["-b", "=a", "-b", "-b", "'=c", "'=c"]


def test_a_path_that_is_listed_twice_must_be_decided_by_id(inside: Run, tmp_path: Path) -> None:
    for i in range(4):
        paint(tmp_path / f"{i}.png", (60 * i, 90, 10), seed=i)
    table = write(tmp_path / "t.csv", "path,label\n0.png,a\n1.png,a\n2.png,b\n3.png,b\n0.png,b\n")
    run = make_run(table, tmp_path / "run", {"0.png#4": "a"}).path.parent
    for text, decisions in (
        ("path,label\n0.png,a\n", "more than once"),
        ("id,path,label\n1.png,2.png,a\n", "different rows"),
        ("id,decision,label\n1.png,keep,b\n", "is kept, but labelled 'b'"),
    ):
        done = inside("apply", run, write(tmp_path / "d.csv", text), "-o", tmp_path / "new.csv")
        assert done.returncode == 3
        assert decisions in done.stderr
    by_id = write(tmp_path / "d.csv", "id,path,label\n0.png#4,0.png,a\n")
    assert inside("apply", run, by_id, "-o", tmp_path / "new.csv").returncode == 0
    assert (tmp_path / "new.csv").read_text().splitlines()[-1].startswith("0.png,a,accept - ")


def test_a_failure_on_the_way_leaves_nothing(
    inside: Run, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = write(tmp_path / "d.csv", "path,label\nred/0.png,green\n")
    (tmp_path / "x.audit.csv").mkdir()
    assert inside("apply", run, decisions, "-o", tmp_path / "x.csv", "--force").returncode == 4
    assert not (tmp_path / "x.csv").exists()
    old = Path.replace

    def full(self: Path, target: Path) -> Path:
        if target.name.endswith("audit.csv"):
            raise OSError(28, "No space left on device")
        return old(self, target)

    monkeypatch.setattr(Path, "replace", full)
    assert inside("apply", run, decisions, "-o", tmp_path / "new.csv").returncode == 4
    assert not (tmp_path / "new.csv").exists()
    assert not (tmp_path / "new.audit.csv").exists()


def test_odd_cells_survive_in_a_changed_row(inside: Run, tmp_path: Path) -> None:
    for i in range(4):
        paint(tmp_path / f"{i}.png", (60 * i, 90, 10), seed=i)
    text = 'path,label,note\n0.png,a,x\n1.png,b,"x\ry"\n2.png,a,"u\u2028v"\n3.png,b,"two\nlines"'
    run = make_run(write(tmp_path / "t.csv", text), tmp_path / "run", {"1.png": "a"}).path.parent
    decisions = write(tmp_path / "d.csv", "path,label\n1.png,a\n2.png,b\n3.png,a\n")
    assert inside("apply", run, decisions, "-o", tmp_path / "new.csv").returncode == 0
    expected = text.replace("1.png,b", "1.png,a").replace("2.png,a", "2.png,b").replace("3.png,b", "3.png,a")
    new = pd.read_csv(tmp_path / "new.csv").drop(columns="noisesieve_decided")
    assert new.equals(pd.read_csv(write(tmp_path / "e.csv", expected)))
    assert inside("export", run, "--to", "csv", "--only", "all", "-o", tmp_path / "all.csv").returncode == 0
    assert len(pd.read_csv(tmp_path / "all.csv")) == 4


def test_truth_values_and_numbers_without_a_name_stay_what_they_are(inside: Run, tmp_path: Path) -> None:
    for i in range(4):
        paint(tmp_path / f"{i}.png", (60 * i, 90, 10), seed=i)
    lines = [f'{{"path": "{i}.png", "label": {str(i < 2).lower()}}}\n' for i in range(4)]
    run = make_run(write(tmp_path / "t.jsonl", "".join(lines)), tmp_path / "run").path.parent
    decisions = write(tmp_path / "d.csv", "path,label\n0.png,false\n")
    done = inside("apply", run, decisions, "-o", tmp_path / "new.jsonl")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "new.jsonl").read_text().splitlines()[0])["label"] is False

    names = {"info": {"features": {"label": {"names": ["1", "0"], "_type": "ClassLabel"}}}}
    table = pa.table({"path": [f"{i}.png" for i in range(4)], "label": [0, 1, -1, 0]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(names)}), tmp_path / "t.parquet")
    run = make_run(tmp_path / "t.parquet", tmp_path / "run2").path.parent
    decisions = write(tmp_path / "d.csv", "path,label\n0.png,1\n")  # a -1 has no name, so numbers are numbers
    assert inside("apply", run, decisions, "-o", tmp_path / "other.parquet").returncode == 0
    assert pq.read_table(tmp_path / "other.parquet")["label"].to_pylist() == [1, 1, -1, 0]


@pytest.mark.parametrize("label", ["x/y", ".hid", ".", "..", "n\\x00l"])
def test_a_new_class_must_be_a_visible_folder(label: str, inside: Run, run: Path, tmp_path: Path) -> None:
    decisions = write(tmp_path / "d.csv", f"path,label\nred/0.png,{label}\n")
    done = inside("apply", run, decisions, "--new-classes", "--tree", "copy", "-o", tmp_path / "tree")
    assert done.returncode == 3
    assert not (tmp_path / "tree").exists()


def test_the_next_command_names_the_tables_own_columns(inside: Run, colours: Path, tmp_path: Path) -> None:
    names = sorted(path.relative_to(colours).as_posix() for path in colours.rglob("*.png"))
    table = tmp_path / "t.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("file", "class"), *((n, n.split("/")[0]) for n in names)])
    options = {"root": colours, "path_column": "file", "label_column": "class"}
    run = make_run(table, tmp_path / "run", WRONG, **options).path.parent
    decisions = write(tmp_path / "d.csv", "path,label\nred/0.png,green\n")
    found = json.loads(inside("apply", run, decisions, "-o", tmp_path / "new.csv", "--json").stdout)
    done = inside("scan", tmp_path / "new.csv", *found["scan"], "--dry-run", "--json")
    assert done.returncode == 0, done.stderr


def test_a_path_that_was_changed_since_the_run_is_refused(inside: Run, tmp_path: Path) -> None:
    for i in range(4):
        paint(tmp_path / f"data/{i}.png", (60 * i, 90, 10), seed=i)
    paint(tmp_path / "secret.png", (1, 2, 3))
    text = "key,path,label\na,0.png,x\nb,1.png,x\nc,2.png,y\nd,3.png,y\n"
    table = write(tmp_path / "data/t.csv", text)
    run = make_run(table, tmp_path / "run", {"a": "y"}, id_column="key").path.parent
    write(table, text.replace("0.png", "../secret.png"))
    done = inside("export", run, "--to", "folder", "--files", "copy", "-o", tmp_path / "out")
    assert done.returncode == 3
    assert "'../secret.png'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_label_studio_has_a_choice_for_unusable_images(colours: Path, tmp_path: Path, inside: Run) -> None:
    run = make_run(colours, tmp_path / "run", {"red/0.png": "green"}).path.parent
    assert inside("export", run, "--to", "label-studio", "-o", "ls").returncode == 0
    tasks = json.loads(Path("ls/tasks.json").read_text())
    choice = {"type": "choices", "value": {"choices": ["[unusable]"]}}
    write(tmp_path / "done.json", json.dumps([{**tasks[0], "annotations": [{"result": [choice]}]}]))
    done = inside("apply", run, tmp_path / "done.json", "-o", "new.csv", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["left_out"] == 1


def test_an_image_folder_without_a_table_name_is_told_of_tree(colours: Path, tmp_path: Path, inside: Run) -> None:
    run = make_run(colours, tmp_path / "run", {"red/0.png": "green"}).path.parent
    write(tmp_path / "d.csv", "id,label\nred/0.png,green\n")
    done = inside("apply", run, tmp_path / "d.csv", "-o", "corrected")
    assert done.returncode == 2
    assert "--tree copy" in done.stderr
    assert inside("apply", run, tmp_path / "d.csv", "-o", "corrected", "--tree", "copy").returncode == 0
