"""What people decided is never asked again: in the table that `apply` writes, in files, and in waivers."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import noisesieve as ns
from noisesieve.core.records import DECIDED_COLUMN
from noisesieve.decisions.marks import DecisionMark
from noisesieve.report.waivers import read_waivers
from tests.conftest import QUICK, Run
from tests.runs import make_run

WRONG = {"red/0.png": "green", "red/1.png": "green", "blue/2.png": "red", "green/3.png": "blue"}


@pytest.fixture
def table(colours: Path) -> Path:
    """A CSV beside the images, with four wrong labels."""
    file = colours.parent / "labels.csv"
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["path", "label", "annotator"])
        for path in sorted(colours.rglob("*.png")):
            name = str(path.relative_to(colours.parent))
            short = str(path.relative_to(colours))
            writer.writerow([name, WRONG.get(short, path.parent.name), "ann, the first"])
    return file


def decide(run: ns.Report, file: Path, choices: dict[str, tuple[str, str]], who: str = "ann") -> Path:
    """Write decisions as the review page does: id → (decision, label)."""
    rows = {row["id"]: row for row in run.table.to_pylist()}
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["id", "path", "sha256", "given", "decision", "label", "reviewer", "decided_at", "run"])
        for name, (word, label) in choices.items():
            row = rows[name]
            when = "2026-11-18T07:00:00Z"
            writer.writerow([name, row["path"], row["sha256"], row["label"], word, label, who, when, "r"])
    return file


def suspects(report: ns.Report) -> set[str]:
    return set(report.corrupted["id"].to_pylist())


@pytest.mark.slow
def test_a_person_who_goes_the_round_trip_twice_is_asked_nothing_again(
    inside: Run, table: Path, tmp_path: Path
) -> None:
    first = ns.scan(table, output=tmp_path / "a", review=False, **_quick())
    flagged = sorted(suspects(first))
    assert len(flagged) >= 3
    choices = {name: ("keep", _label(first, name)) for name in flagged[1:]}
    choices[flagged[0]] = ("accept", _suggested(first, flagged[0]))
    file = decide(first, tmp_path / "decisions.csv", choices)
    done = inside("apply", tmp_path / "a", file, "-o", tmp_path / "new.csv", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kept_in"] == str(tmp_path / "new.csv")
    again = inside("scan", tmp_path / "new.csv", "-o", tmp_path / "b", *QUICK)
    assert again.returncode == 0, again.stderr
    assert f"{len(flagged)} rows are decided by ann, {len(flagged)} of them in the table" in again.stderr
    second = ns.read_report(tmp_path / "b")
    assert not suspects(second) & set(flagged)
    rows = {row["id"]: row for row in second.table.to_pylist()}
    for name in flagged:
        assert rows[name]["trusted"]
        assert rows[name]["decided_label"] == rows[name]["label"] == choices[name][1]
        assert rows[name]["decided_by"] == "ann"
        assert rows[name]["corruption_probability"] == 0
    assert "Decided before" in (tmp_path / "b/review.html").read_text()
    counts = json.loads(inside("diff", tmp_path / "a", tmp_path / "b", "--json").stdout)["counts"]
    assert (counts["fixed"], counts["decided"]) == (1, len(flagged) - 1)


def _quick() -> dict[str, object]:
    return {"weights": "none", "epochs": 8, "warmup_epochs": 4, "ramp_epochs": 2, "sieve_start": 6, "flip": False}


def _label(report: ns.Report, name: str) -> str:
    return next(row["label"] for row in report.table.to_pylist() if row["id"] == name)


def _suggested(report: ns.Report, name: str) -> str:
    return next(row["suggested_label"] for row in report.table.to_pylist() if row["id"] == name)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_every_table_format_carries_decisions_and_an_older_one_stays(inside: Run, table: Path, kind: str) -> None:
    home = table.parent
    frame = pd.read_csv(table, dtype=str)
    data = home / f"data.{kind}"
    if kind == "jsonl":
        frame.to_json(data, orient="records", lines=True)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), data)
    else:
        frame.to_csv(data, index=False, sep="," if kind == "csv" else "\t")
    names = frame["path"].tolist()
    run = make_run(data, home / "a", {names[0]: "red"})
    file = decide(run, home / "d1.csv", {names[0]: ("keep", _label(run, names[0])), names[9]: ("relabel", "red")})
    assert inside("apply", home / "a", file, "-o", home / f"one.{kind}").returncode == 0
    again = make_run(home / f"one.{kind}", home / "b", {names[1]: "red"})
    file = decide(again, home / "d2.csv", {names[1]: ("keep", _label(again, names[1]))}, who="=bob")
    done = inside("apply", home / "b", file, "-o", home / f"two.{kind}")
    assert done.returncode == 0, done.stderr
    found = ns.read_report(make_run(home / f"two.{kind}", home / "c").path.parent).to_pandas().set_index("id")
    marks = {name: DecisionMark.from_text(text) for name, text in found[DECIDED_COLUMN].fillna("").items() if text}
    assert {name: (mark.decision, mark.by) for name, mark in marks.items() if mark is not None} == {
        names[0]: ("keep", "ann"),
        names[9]: ("relabel", "ann"),
        names[1]: ("keep", "=bob"),
    }
    assert found.loc[names[9], "label"] == "red"
    assert found["annotator"].eq("ann, the first").all()


@pytest.mark.slow
def test_a_decision_ends_with_the_image_or_the_label_it_was_about(inside: Run, table: Path, tmp_path: Path) -> None:
    names = pd.read_csv(table, dtype=str)["path"].tolist()
    run = make_run(table, tmp_path / "a")
    choices = {name: ("keep", _label(run, name)) for name in names[:3]}
    inside("apply", tmp_path / "a", decide(run, tmp_path / "d.csv", choices), "-o", tmp_path / "new.csv")
    frame = pd.read_csv(tmp_path / "new.csv", dtype=str, keep_default_na=False)
    frame.loc[0, "label"] = "red" if frame.loc[0, "label"] != "red" else "blue"
    frame.to_csv(tmp_path / "new.csv", index=False)
    done = inside("scan", tmp_path / "new.csv", "-o", tmp_path / "b", "--no-review", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "2 rows are decided by ann" in done.stderr
    assert "1 decided row has another image or another label now: that decision is void." in done.stderr
    trusted = ns.read_report(tmp_path / "b").table["trusted"].to_numpy(zero_copy_only=False)
    assert np.flatnonzero(trusted).tolist() == [1, 2]


@pytest.mark.slow
def test_a_tree_keeps_its_decisions_in_a_file_that_the_next_command_names(
    inside: Run, colours: Path, tmp_path: Path
) -> None:
    run = make_run(colours, tmp_path / "a")
    file = decide(run, tmp_path / "d.csv", {"red/0.png": ("relabel", "green"), "blue/1.png": ("keep", "blue")})
    done = inside("apply", tmp_path / "a", file, "-o", tmp_path / "tree", "--tree", "link", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kept_in"] == str(tmp_path / "tree.decisions.csv")
    assert found["scan"] == ["--allow-outside", "--decisions", found["kept_in"]]
    again = inside("scan", tmp_path / "tree", *found["scan"], "--no-review", *QUICK)
    assert again.returncode == 0, again.stderr
    report = ns.read_report(tmp_path / "work/noisesieve-runs/tree-2")
    decided = {row["path"]: row["decided_label"] for row in report.table.to_pylist() if row["trusted"]}
    moved = next(path for path in decided if path.startswith("green/"))
    assert decided == {moved: "green", "blue/1.png": "blue"}
    assert report.summary.recalibration is None  # labels that were corrected say nothing about this model


def test_kept_rows_become_waivers_where_that_is_wanted(inside: Run, colours: Path, tmp_path: Path) -> None:
    run = make_run(colours, tmp_path / "a", {"red/0.png": "green", "red/1.png": "green"})
    choices = {"red/0.png": ("keep", "red"), "red/1.png": ("accept", "green")}
    file = decide(run, tmp_path / "d.csv", choices)
    done = inside("apply", tmp_path / "a", file, "-o", tmp_path / "new.csv", "--waive-kept")
    assert done.returncode == 0, done.stderr
    waivers = read_waivers(tmp_path / "work/.noisesieve-waivers.csv")
    assert [(waiver.path, waiver.label) for waiver in waivers] == [("red/0.png", "red")]
    assert waivers[0].reason == "kept by ann on 2026-11-18"
    marked = pd.read_csv(tmp_path / "new.csv", dtype=str, keep_default_na=False)
    assert [text.split(" ")[0] for text in marked[DECIDED_COLUMN] if text] == ["accept"]


def test_waive_takes_decisions_alone(inside: Run, colours: Path, tmp_path: Path) -> None:
    run = make_run(colours, tmp_path / "a", {"red/0.png": "green", "red/1.png": "green"})
    file = decide(run, tmp_path / "d.csv", {"red/0.png": ("keep", "red"), "red/1.png": ("accept", "green")})
    done = inside("waive", tmp_path / "a", "--decisions", file)
    assert done.returncode == 0, done.stderr
    assert "1 decisions change a label" in done.stderr
    assert [waiver.path for waiver in read_waivers(tmp_path / "work/.noisesieve-waivers.csv")] == ["red/0.png"]
    assert inside("waive", tmp_path / "a").returncode == 2


@pytest.mark.slow
def test_decisions_of_two_reviewers_are_learnt_and_hold_in_a_moved_folder(
    inside: Run, colours: Path, tmp_path: Path
) -> None:
    run = make_run(colours, tmp_path / "a")
    one = decide(run, tmp_path / "one.csv", {"red/0.png": ("relabel", "green")})
    two = decide(run, tmp_path / "two.csv", {"blue/1.png": ("keep", "blue")}, who="bob")
    moved = shutil.move(colours, tmp_path / "elsewhere")
    (tmp_path / "elsewhere/red/0.png").rename(tmp_path / "elsewhere/red/renamed.png")
    done = inside("scan", moved, "--decisions", one, two, "-o", tmp_path / "b", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "2 rows are decided by ann, bob" in done.stderr
    rows = {row["path"]: row for row in ns.read_report(tmp_path / "b").table.to_pylist()}
    assert rows["red/renamed.png"]["decided_label"] == "green"
    assert rows["red/renamed.png"]["label"] == "red"
    three = decide(run, tmp_path / "three.csv", {"red/0.png": ("keep", "red")}, who="eve")
    done = inside("scan", moved, "--decisions", f"{one},{three}", "-o", tmp_path / "c", *QUICK)
    assert done.returncode == 3
    assert "by ann" in done.stderr
    assert "by eve" in done.stderr
    assert inside("scan", moved, two, "-o", tmp_path / "c").returncode == 2
    # What the run was scanned with is applied with it, without being given again.
    done = inside(
        "apply", tmp_path / "b", decide(run, tmp_path / "d.csv", {"blue/1.png": ("keep", "blue")}), "-o", "n.csv"
    )
    assert done.returncode == 0, done.stderr
    assert "1 decisions that the run was scanned with are applied, too." in done.stdout
    frame = pd.read_csv(tmp_path / "work/n.csv", dtype=str, keep_default_na=False).set_index("path")
    assert frame.loc[[name for name in frame.index if name.endswith("red/renamed.png")], "label"].tolist() == ["green"]


def test_columns_of_the_users_own_are_not_taken_for_decisions(inside: Run, table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table, dtype=str).assign(decided_by="bob", decided_at="monday", decided="keep")
    frame.to_csv(table, index=False)
    run = make_run(table, tmp_path / "a")
    file = decide(run, tmp_path / "d.csv", {frame["path"][0]: ("keep", frame["label"][0])})
    done = inside("apply", tmp_path / "a", file, "-o", tmp_path / "new.csv", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["earlier"], found["left_out"], found["decided"]) == (0, 0, 1)


@pytest.mark.parametrize("kind", ["large_string", "dictionary", "null"])
def test_a_mark_column_that_another_program_stored_otherwise_is_filled(
    inside: Run, table: Path, tmp_path: Path, kind: str
) -> None:
    frame = pd.read_csv(table, dtype=str)
    empty = {
        "large_string": pa.array([""] * len(frame), pa.large_string()),
        "dictionary": pa.array([""] * len(frame)).dictionary_encode(),
        "null": pa.nulls(len(frame)),
    }[kind]
    whole = pa.Table.from_pandas(frame, preserve_index=False).append_column(DECIDED_COLUMN, empty)
    pq.write_table(whole, tmp_path / "t.parquet")
    run = make_run(tmp_path / "t.parquet", tmp_path / "a")
    file = decide(run, tmp_path / "d.csv", {frame["path"][0]: ("keep", frame["label"][0])})
    done = inside("apply", tmp_path / "a", file, "-o", tmp_path / "new.parquet")
    assert done.returncode == 0, done.stderr
    marks = pq.read_table(tmp_path / "new.parquet")[DECIDED_COLUMN].to_pylist()
    assert [mark.split(" ")[0] for mark in marks if mark] == ["keep"]


def test_what_nobody_touched_in_cvat_is_not_kept_by_anybody(inside: Run, colours: Path, tmp_path: Path) -> None:
    make_run(colours, tmp_path / "a", {"red/0.png": "green"})
    assert inside("export", tmp_path / "a", "--to", "cvat", "--only", "all", "-o", tmp_path / "c.xml").returncode == 0
    done = inside("waive", tmp_path / "a", "--decisions", tmp_path / "c.xml")
    assert done.returncode == 3
    assert "No label was kept" in done.stderr
