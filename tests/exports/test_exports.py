"""Exports: what each format must hold, and what must never be written where."""

from __future__ import annotations

import csv
import json
import os
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import noisesieve as ns
from noisesieve.core.errors import OutputError
from noisesieve.core.files import atomic_output, sweep_temporaries
from noisesieve.core.text import folder_name, guard_cell, unguard_cell
from noisesieve.exports.formats import EXPORTS
from noisesieve.report.run import RunFolder
from noisesieve.report.write_tables import write_table
from tests.conftest import Run, paint, validate
from tests.runs import make_run

WRONG = {"red/0.png": "green", "red/1.png": "blue", "blue/2.png": "red"}


@pytest.fixture
def run(colours: Path, tmp_path: Path) -> Path:
    (colours / "green/broken.png").write_bytes(b"no image")
    return make_run(colours, tmp_path / "run", WRONG).path.parent


def test_what_is_shown_is_flagged_and_probable_enough(inside: Run, run: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(run, home)
    report = ns.read_report(home)
    row = report.corrupted["row"].to_pylist()[-1]
    column = report.table.schema.get_field_index("corruption_probability")
    chances = report.table["corruption_probability"].to_pylist()
    chances[row] = 0.3
    field = report.table.schema.field(column)
    changed = report.table.set_column(column, field, pa.array(chances, field.type))
    facts = report.facts.to_document()
    RunFolder(home).replace({"report.parquet": lambda path: write_table(changed, path, facts)})
    done = inside("export", home, "--to", "csv", "-o", "a.csv")
    assert "2 rows written" in done.stdout, done.stderr
    assert "1 more is flagged, but wrong with less than 40%" in done.stdout
    assert "3 rows" in inside("export", home, "--to", "csv", "-o", "b.csv", "--min-probability", "0").stdout
    page = inside("review", home, "-o", "page.html")
    assert "2 of 2 suspects" in page.stdout, page.stderr
    assert "--min-probability 0" in page.stdout
    assert "less than 40%: 1 more" in Path("page.html").read_text()
    Path("noisesieve.toml").write_text("min-probability = 0.2\n")  # the same setting for every command
    assert "3 rows" in inside("export", home, "--to", "csv", "-o", "c.csv").stdout
    assert "3 of 3 suspects" in inside("review", home, "-o", "other.html").stdout


@pytest.mark.parametrize("name", EXPORTS)
def test_every_format_takes_suspects_clean_rows_and_all(name: str, inside: Run, run: Path, tmp_path: Path) -> None:
    for only, rows in (("corrupted", 3), ("clean", 117), ("all", 120)):
        out = tmp_path / f"out-{only}"
        done = inside("export", run, "--to", name, "--only", only, "-o", out, "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        validate(found, "export")
        unreadable = only == "all" and name in ("csv", "jsonl")  # they show every row of the report
        assert found["rows"] == rows + unreadable
        assert out.exists()
        again = inside("export", run, "--to", name, "--only", only, "-o", out)
        assert again.returncode == 4
        assert "--force" in again.stderr
        assert inside("export", run, "--to", name, "--only", only, "-o", out, "--force").returncode == 0
        assert not [entry for entry in tmp_path.iterdir() if entry.name.endswith((".tmp", ".old"))]


def test_by_default_the_result_lies_in_the_run_folder_and_people_are_told_what_to_do(inside: Run, run: Path) -> None:
    for name, where in (("csv", "suspects.csv"), ("cvat", "suspects-cvat.xml"), ("fiftyone", "suspects-fiftyone")):
        done = inside("export", run, "--to", name)
        assert done.returncode == 0, done.stderr
        assert "3 rows written to" in done.stdout
        assert (run / where).exists()


def test_the_most_suspicious_come_first_and_filters_hold(inside: Run, run: Path, tmp_path: Path) -> None:
    inside("export", run, "--to", "csv", "-o", tmp_path / "a.csv")
    frame = pd.read_csv(tmp_path / "a.csv")
    assert frame["rank"].tolist() == [1, 2, 3]
    assert set(frame["id"]) == set(WRONG)
    inside("export", run, "--to", "csv", "--top", "2", "--only", "all", "-o", tmp_path / "b.csv")
    assert pd.read_csv(tmp_path / "b.csv")["rank"].tolist() == [1, 2]
    none = inside("export", run, "--to", "csv", "--only", "clean", "--min-probability", "1", "-o", tmp_path / "c.csv")
    assert none.returncode == 3
    assert "no rows to export" in none.stderr
    assert not (tmp_path / "c.csv").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--to", "docx"),
        ("--to", "csv", "--only", "some"),
        ("--to", "csv", "--top", "0"),
        ("--to", "csv", "--files", "x"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options: tuple[str, ...], inside: Run, run: Path) -> None:
    assert inside("export", run, *options).returncode == 2


@pytest.mark.parametrize("name", EXPORTS)
def test_nothing_is_written_into_the_dataset(name: str, inside: Run, run: Path, colours: Path) -> None:
    before = sorted(colours.rglob("*"))
    done = inside("export", run, "--to", name, "-o", colours / "out")
    assert done.returncode == 4
    assert "inside the dataset" in done.stderr
    assert sorted(colours.rglob("*")) == before


def test_a_folder_that_is_not_ours_is_never_replaced(inside: Run, run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    done = inside("export", run, "--to", "folder", "-o", mine, "--force")
    assert done.returncode == 4
    assert (mine / "thesis.txt").read_text() == "years of work"


def test_a_disk_that_fills_up_leaves_the_old_export(
    inside: Run, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inside("export", run, "--to", "folder", "--files", "copy", "-o", tmp_path / "out").returncode == 0
    before = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    monkeypatch.setattr("noisesieve.core.files._exchange", lambda one, other: False)  # a system without it

    def full(*_: object) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("noisesieve.exports.images.ImageWriter._write", full)
        done = inside("export", run, "--to", "folder", "--files", "copy", "-o", tmp_path / "out", "--force")
        assert done.returncode == 4
    real, calls = Path.replace, []

    def second(self: Path, target: Path) -> Path:
        calls.append(target)
        return real(self, target) if len(calls) != 2 else full()  # the old folder is aside, the new one cannot come

    with monkeypatch.context() as disk:
        disk.setattr(Path, "replace", second)
        done = inside("export", run, "--to", "folder", "--files", "copy", "-o", tmp_path / "out", "--force")
        assert done.returncode == 4
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == before
    monkeypatch.setattr(Path, "replace", full)
    done = inside("export", run, "--to", "folder", "--files", "copy", "-o", tmp_path / "out", "--force")
    assert done.returncode == 4
    assert "No space left" in done.stderr
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == before


def test_csv_cells_are_inert_in_a_spreadsheet_and_can_be_read_back(inside: Run, tmp_path: Path) -> None:
    labels = ["=cmd()", "+1", "-x", "@sum", "'=already", "plain", "a,b", 'q"q', "NA", "007"]
    rows = []
    for c, label in enumerate(labels):
        for i in range(2):
            paint(tmp_path / f"data/{c}-{i}.png", (20 * c, 90, 40 * i), seed=c)
            rows.append((f"{c}-{i}.png", label, "=annotator"))
    with (tmp_path / "data/t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "note"), *rows])
    run = make_run(tmp_path / "data/t.csv", tmp_path / "run", {"0-0.png": "plain"}).path.parent
    assert inside("export", run, "--to", "csv", "--only", "all", "-o", tmp_path / "x.csv").returncode == 0
    frame = pd.read_csv(tmp_path / "x.csv", dtype=str, keep_default_na=False)
    assert not frame["label"].str.match(r"[=+\-@\t\r\n]").any()
    assert (frame["note"] == "'=annotator").all()
    assert [unguard_cell(label) for label in frame["label"]] == [label for _, label, _ in rows]
    assert pd.read_csv(tmp_path / "x.csv")["margin"].min() < 0  # numbers stay numbers
    assert inside("export", run, "--to", "jsonl", "--only", "all", "-o", tmp_path / "x.jsonl").returncode == 0
    raw = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [row["label"] for row in raw] == [label for _, label, _ in rows]


@pytest.mark.parametrize("text", ["=a", "''=a", "'a", "a", "", "-1", "\tx", "'\n"])
def test_guarding_a_cell_is_reversible(text: str) -> None:
    assert unguard_cell(guard_cell(text)) == text


def test_label_studio_tasks_hold_the_suggestion_as_a_prediction(inside: Run, tmp_path: Path) -> None:
    for i in range(4):
        paint(tmp_path / f"data/a b/ü#{i}.png", (200, 0, 0), seed=i)
        paint(tmp_path / f"data/<c&d>/{i}.png", (0, 200, 0), seed=i)
    run = make_run(tmp_path / "data", tmp_path / "run", {"a b/ü#1.png": "<c&d>"}).path.parent
    done = inside("export", run, "--to", "label-studio", "-o", tmp_path / "ls")
    assert done.returncode == 0, done.stderr
    assert "LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT" in done.stdout
    (task,) = json.loads((tmp_path / "ls/tasks.json").read_text())
    assert task["data"]["image"].startswith("/data/local-files/?d=data/a%20b/%C3%BC%23")
    assert unquote(task["data"]["image"].partition("?d=")[2]) == "data/a b/ü#1.png"
    assert f"DOCUMENT_ROOT={tmp_path} label-studio start" in done.stdout.replace("\n", "")
    assert f"  {tmp_path / 'data'}\n" in done.stdout  # the storage is below the root, as 1.23 wants it
    assert task["data"]["given_label"] == "a b"
    (prediction,) = task["predictions"]
    assert 0 <= prediction["score"] <= 1
    assert prediction["result"][0]["value"] == {"choices": ["<c&d>"]}
    config = ET.fromstring((tmp_path / "ls/config.xml").read_text())
    assert [choice.get("value") for choice in config.iter("Choice")] == ["<c&d>", "a b", "[unusable]"]
    assert [part.tag for part in config] == ["Header", "Choices", "Image"]
    assert config[0].get("value") == "Given label: $given_label"
    inside("export", run, "--to", "label-studio", "-o", tmp_path / "s3", "--image-prefix", "s3://bucket/")
    assert json.loads((tmp_path / "s3/tasks.json").read_text())[0]["data"]["image"].startswith("s3://bucket/a%20b/")


def test_cvat_has_one_tag_an_image_and_one_label_a_class(inside: Run, run: Path, tmp_path: Path) -> None:
    assert inside("export", run, "--to", "cvat", "-o", tmp_path / "c.xml").returncode == 0
    root = ET.fromstring((tmp_path / "c.xml").read_bytes())
    assert root.findtext("version") == "1.1"
    assert [name.text for name in root.iter("name")] == ["blue", "green", "red"]
    images = list(root.iter("image"))
    assert {image.get("name"): image[0].get("label") for image in images} == WRONG
    assert all(len(image) == 1 and image[0].tag == "tag" and image[0].get("source") == "auto" for image in images)
    assert all((image.get("width"), image.get("height")) == ("16", "16") for image in images)
    assert [image.get("id") for image in images] == ["0", "1", "2"]


def test_fiftyone_has_the_given_label_as_truth_and_the_suggestion_as_a_prediction(
    inside: Run, run: Path, tmp_path: Path
) -> None:
    done = inside("export", run, "--to", "fiftyone", "-o", tmp_path / "fo")
    assert "FiftyOneDataset" in done.stdout
    metadata = json.loads((tmp_path / "fo/metadata.json").read_text())
    assert metadata["default_classes"] == ["blue", "green", "red"]
    assert "version" not in metadata  # or FiftyOne would want documents of its own database
    samples = json.loads((tmp_path / "fo/samples.json").read_text())["samples"]
    assert len(samples) == len(WRONG)
    found = {sample["noisesieve_id"]: sample for sample in samples}["red/0.png"]
    assert found["ground_truth"] == {"_cls": "Classification", "label": "red"}
    assert found["prediction"]["label"] == WRONG["red/0.png"]
    assert 0 <= found["prediction"]["confidence"] <= 1
    assert found["tags"] == ["corrupted"]
    assert all(Path(sample["filepath"]).is_file() for sample in samples)


@pytest.mark.parametrize("files", ["link", "copy"])
def test_hugging_face_reads_images_and_labels_back(
    files: str, inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    for i in range(6):
        paint(tmp_path / f"data/007/{i} #.png", (200, 0, 0), seed=i)
        paint(tmp_path / f"data/NA/{i}.png", (0, 200, 0), seed=i)
    run = make_run(tmp_path / "data", tmp_path / "run", {"007/1 #.png": "NA"}).path.parent
    done = inside("export", run, "--to", "huggingface", "--only", "all", "--files", files, "-o", tmp_path / "hf-out")
    assert done.returncode == 0, done.stderr
    plain = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "hf-out"), cache_dir=str(tmp_path / "c"))
    assert plain["train"].features["label"].names == ["007", "NA"]
    rows = datasets.load_dataset(str(tmp_path / "hf-out"), cache_dir=str(tmp_path / "d"))["train"]
    assert len(rows) == 12
    assert rows.features["label"].names == ["007", "NA"]
    assert sorted(rows["label"]) == [0] * 6 + [1] * 6
    assert rows[0]["image"].size == (16, 16)
    suspect = next(row for row in rows if row["id"] == "007/1 #.png")
    assert (suspect["verdict"], suspect["suggested_label"]) == ("corrupted", "NA")


def test_hugging_face_keeps_the_splits(inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    for split, count in (("train", 5), ("val", 3), ("fold 9", 2)):
        for i in range(count):
            paint(tmp_path / f"{split}-a-{i}.png", (200, 0, 0), seed=i)
            paint(tmp_path / f"{split}-b-{i}.png", (0, 200, 0), seed=i)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        files = sorted(path.name for path in tmp_path.glob("*.png"))
        parts = [name.rsplit("-", 2) for name in files]
        csv.writer(file).writerows(
            [("path", "label", "split"), *((f, p[1], p[0]) for f, p in zip(files, parts, strict=True))]
        )
    run = make_run(tmp_path / "t.csv", tmp_path / "run").path.parent
    done = inside("export", run, "--to", "huggingface", "--only", "all", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "c"))
    assert {name: len(rows) for name, rows in loaded.items()} == {"train": 10, "val": 6, "fold_9": 4}
    assert loaded["val"].features["label"].names == ["a", "b"]


def test_the_folder_of_suspects_is_sorted_by_given_and_suggested(inside: Run, run: Path, tmp_path: Path) -> None:
    inside("export", run, "--to", "folder", "-o", tmp_path / "tree")
    assert (tmp_path / "tree/red/green/0.png").is_symlink()
    with Image.open(tmp_path / "tree/red/green/0.png") as image:
        assert image.size == (16, 16)
    assert (tmp_path / "tree/blue/red/2.png").exists()


def test_the_folder_of_clean_rows_is_a_training_set_that_scan_reads(inside: Run, run: Path, tmp_path: Path) -> None:
    inside("export", run, "--to", "folder", "--only", "clean", "--files", "copy", "-o", tmp_path / "tree")
    assert not (tmp_path / "tree/red/0.png").exists()
    assert len(list((tmp_path / "tree").glob("*/*.png"))) == 117
    done = inside("scan", tmp_path / "tree", "--dry-run", "--json")
    assert json.loads(done.stdout)["examples"] == 117
    assert "hidden" not in done.stderr


def test_hostile_labels_and_names_cannot_leave_the_export(inside: Run, tmp_path: Path) -> None:
    labels = ["../../up", "/etc", "a/b", "..", ".hidden", "x" * 300, "X" * 300, "new\nline", "con:*?", " "]
    rows = []
    for c, label in enumerate(labels):
        for i in range(2):
            paint(tmp_path / f"data/{c}/same.png" if i == 0 else tmp_path / f"data/{c}.png", (20 * c, 90, 40), seed=c)
            rows.append((f"{c}/same.png" if i == 0 else f"{c}.png", label))
    with (tmp_path / "data/t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    run = make_run(tmp_path / "data/t.csv", tmp_path / "run", {"0.png": "/etc"}).path.parent
    before = set(tmp_path.rglob("*"))
    for name in ("folder", "huggingface"):
        out = tmp_path / f"out-{name}"
        done = inside("export", run, "--to", name, "--only", "all", "-o", out)
        assert done.returncode == 0, done.stderr
        made = set(tmp_path.rglob("*")) - before
        assert all(path.is_relative_to(out) for path in made)
        assert len([path for path in made if path.suffix == ".png"]) == 20
        before |= made


def test_embedded_images_are_written_out_or_refused_with_a_reason(inside: Run, colours: Path, tmp_path: Path) -> None:
    files = sorted(colours.rglob("*.png"))
    table = pa.table({"image": [file.read_bytes() for file in files], "label": [file.parent.name for file in files]})
    pq.write_table(table, tmp_path / "e.parquet")
    run = make_run(tmp_path / "e.parquet", tmp_path / "run", {"0": "red", "3": "green"}).path.parent
    for name in ("folder", "huggingface"):
        done = inside("export", run, "--to", name, "-o", tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert len(list((tmp_path / name).rglob("*.png"))) == 2
    for name in ("label-studio", "cvat", "fiftyone"):
        done = inside("export", run, "--to", name)
        assert done.returncode == 3
        assert "--to folder" in done.stderr


def test_images_that_are_gone_are_left_out_and_counted(inside: Run, run: Path, colours: Path, tmp_path: Path) -> None:
    from noisesieve.commands._open_run import index_of_run  # the row stays in the index of a table, not of a folder
    from noisesieve.report.report import read_report

    assert len(index_of_run(read_report(run))) == 121
    with (tmp_path / "t.csv").open("w", newline="") as file:
        names = sorted(path.relative_to(colours).as_posix() for path in colours.rglob("*.png"))
        csv.writer(file).writerows([("path", "label"), *((name, name.split("/")[0]) for name in names)])
    made = make_run(tmp_path / "t.csv", tmp_path / "run2", WRONG, root=colours)
    (colours / "red/0.png").unlink()
    done = inside("export", made.path.parent, "--to", "folder", "-o", tmp_path / "tree")
    assert done.returncode == 0, done.stderr
    assert "2 rows written" in done.stdout
    assert "1 image missing or changed since the run" in done.stdout
    assert len(list((tmp_path / "tree").rglob("*.png"))) == 2


@pytest.mark.parametrize("label", ["a/b", "..", "", ".x", "y" * 500, "nul\0l", "ü" * 200])
def test_a_folder_name_is_one_visible_name_of_bearable_length(label: str) -> None:
    name = folder_name(label)
    assert "/" not in name
    assert "\0" not in name
    assert not name.startswith(".")
    assert 0 < len(name.encode()) <= 140


def test_splits_stay_apart_and_do_not_confuse_hugging_face(
    inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    for split in ("train", "test"):
        for label in ("x", "y"):
            for i in range(3):
                paint(tmp_path / f"d/{split}/{label}/{i}.png", (200, i, 0), seed=i)
    run = make_run(tmp_path / "d", tmp_path / "run", {"train/x/0.png": "y"}).path.parent
    assert inside("export", run, "--to", "huggingface", "--only", "all", "-o", tmp_path / "out").returncode == 0
    loaded = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "out"), cache_dir=str(tmp_path / "c"))
    for split in ("train", "test"):
        rows = loaded[split]
        assert rows["split"][:] == [split] * 6
        names = rows.features["label"].names
        assert [row["path"].split("/")[1] for row in rows] == [names[code] for code in rows["label"]]
    assert inside("export", run, "--to", "folder", "--only", "clean", "-o", tmp_path / "tree").returncode == 0
    assert len(list((tmp_path / "tree/test").rglob("*.png"))) == 6
    assert len(list((tmp_path / "tree/train").rglob("*.png"))) == 5
    assert (
        json.loads(inside("scan", tmp_path / "tree", "--allow-outside", "--dry-run", "--json").stdout)["examples"] == 11
    )


def test_classes_that_xml_cannot_tell_apart_are_refused(inside: Run, tmp_path: Path) -> None:
    rows = [("path", "label")]
    for i, label in enumerate(("x", "x\x01", "x", "x\x01")):
        paint(tmp_path / f"data/{i}.png", (60 * i, 90, 10), seed=i)
        rows.append((f"{i}.png", label))
    with (tmp_path / "data/t.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    run = make_run(tmp_path / "data/t.csv", tmp_path / "run", {"0.png": "x\x01"}).path.parent
    for name in ("cvat", "label-studio"):
        done = inside("export", run, "--to", name, "-o", tmp_path / "out")
        assert done.returncode == 3
        assert not (tmp_path / "out").exists()


def test_what_is_printed_names_the_real_place(inside: Run, run: Path, tmp_path: Path) -> None:
    for name in ("huggingface", "fiftyone"):
        done = inside("export", run, "--to", name, "-o", tmp_path / name)
        assert str(tmp_path / name) in done.stdout.replace("\n", "")
        assert ".tmp" not in done.stdout


def test_a_dataset_that_moved_is_not_written_into_either(inside: Run, run: Path, colours: Path, tmp_path: Path) -> None:
    moved = colours.rename(tmp_path / "moved")
    done = inside("export", run, "--to", "csv", "--data", moved, "-o", moved / "red/x.csv")
    assert done.returncode == 4


def test_a_replaced_folder_is_the_old_or_the_new_one_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    for text in ("old", "new"):
        with atomic_output(out, folder=True, force=True) as folder:
            (folder / "file").write_text(text)
            if text == "new":  # one step, no rename after which the folder is gone
                monkeypatch.setattr(Path, "replace", lambda self, target: pytest.fail("renamed in two steps"))
    assert (out / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_kill_left_is_restored_and_swept(tmp_path: Path) -> None:
    out, old, unfinished = (tmp_path / name for name in ("out", ".out.0123abcd.old", ".out.0123abcd.tmp"))
    stranger = tmp_path / ".out.mine.tmp"
    for folder in (old, unfinished, stranger):
        folder.mkdir()
        (folder / ".noisesieve").write_text("made by noisesieve")
    (old / "file").write_text("old")
    os.utime(unfinished, (0, 0))
    with pytest.raises(OutputError, match="exists already"), atomic_output(out, folder=True, force=False):
        pass
    assert (out / "file").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.mine.tmp", "out"]


def test_temporary_files_of_a_kill_are_swept_from_a_run(tmp_path: Path) -> None:
    for name in (".report.parquet.0123abcd.tmp", ".mine.tmp", "report.parquet"):
        (tmp_path / name).write_text("x")
    sweep_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.tmp", "report.parquet"]
