"""Embeddings and predictions of the user's own: no image is needed, rows never shift, and nothing is guessed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import noisesieve as ns
from noisesieve.core.errors import UsageError
from tests.conftest import COLOURS, Run, paint

ROWS, WIDTH = 120, 12
NAMES = np.array(["ant", "bee", "cat"])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of labels without images, 12 of them wrong, with embeddings and predictions beside it."""
    rng = np.random.default_rng(0)
    truth = np.arange(ROWS) % 3
    given = truth.copy()
    given[::10] = (truth[::10] + 1) % 3
    vectors = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    vectors[np.arange(ROWS), truth] += 6
    logits = vectors[:, :3].astype(np.float64)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.save(tmp_path / "e.npy", vectors)
    np.save(tmp_path / "p.npy", probs)
    frame = pd.DataFrame({"key": [f"k{i}" for i in range(ROWS)], "label": NAMES[given], "true_label": NAMES[truth]})
    frame["note"] = [f"row <b>{i}</b>" for i in range(ROWS)]
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def flagged(run: Path) -> set[int]:
    return set(ns.read_report(run).corrupted["row"].to_pylist())


WRONG = set(range(0, ROWS, 10))


@pytest.mark.slow
def test_embeddings_are_scanned_checked_explained_and_corrected(inside: Run, table: Path) -> None:
    home = table.parent
    words = ("scan", table, "--embeddings", home / "e.npy", "--id-column", "key", "-o", home / "run")
    done = inside(*words)
    assert done.returncode == 0, done.stderr
    report = ns.read_report(home / "run")
    assert flagged(home / "run") >= WRONG
    assert len(flagged(home / "run")) <= len(WRONG) + 3
    assert report.table["path"].null_count == ROWS
    assert set(report.table["status"].to_pylist()) == {"ok"}
    assert all(len(sha) == 64 for sha in report.table["sha256"].to_pylist())
    assert "finished already" in inside(*words).stderr
    page = (home / "run/review.html").read_text()
    assert "row \\u003cb\\u003e0\\u003c/b\\u003e" in page  # the row's own words stand for the image, and are inert
    batch = ("check", table, "--id-column", "key", "--model", home / "run")
    check = inside(*batch, "--embeddings", home / "e.npy", "--json")
    assert check.returncode == 1, check.stderr
    assert json.loads(check.stdout)["in_training"] == ROWS
    assert inside(*batch).returncode == 5
    explained = json.loads(inside("explain", home / "run", "k0", "--json").stdout)
    assert [len(group["examples"]) for group in explained["neighbours"]] == [3, 3]
    assert inside("retrain", home / "run").returncode == 0
    assert inside("export", home / "run", "--to", "fiftyone", "-o", home / "fo").returncode == 3
    (home / "d.csv").write_text("id,label\nk0,ant\nk11,cat\n")
    assert inside("apply", home / "run", home / "d.csv", "-o", home / "new.csv").returncode == 0
    options = ("--embeddings", home / "e.npy", "--id-column", "key", "--no-review")
    again = inside("scan", home / "new.csv", *options, "-o", home / "b")
    assert "2 rows are decided, 2 of them in the table" in again.stderr
    assert 0 not in flagged(home / "b")
    found = json.loads(inside("diff", home / "run", home / "b", "--json").stdout)
    assert found["counts"]["fixed"] == 1
    measured = json.loads(inside("evaluate", home / "run", "--json").stdout)
    assert measured["corrupted"]["recall"] == 1.0
    assert inside("evaluate", home / "run", "--plant", "10%", "--json").returncode == 0


def test_predictions_need_no_training_and_leave_no_model(inside: Run, table: Path) -> None:
    home = table.parent
    words = ("scan", table, "--predictions", home / "p.npy", "--classes", "ant,bee,cat", "-o", home / "run")
    done = inside(*words)
    assert done.returncode == 0, done.stderr
    assert "nothing is trained" in done.stderr
    assert flagged(home / "run") == WRONG
    report = ns.read_report(home / "run")
    assert report.facts.beta == 0
    assert sum(report.facts.prior) == pytest.approx(1)
    assert report.table["sha256"].null_count == report.table["flagged_epochs"].null_count == ROWS
    assert {path.name for path in (home / "run").iterdir()} & {"model.json", "history.parquet"} == set()
    for command in (("check", table, "--model", home / "run"), ("retrain", home / "run")):
        refused = inside(*command)
        assert refused.returncode == 5
        assert "was scanned from predictions" in refused.stderr
    assert inside("evaluate", home / "run", "--plant", "5%").returncode == 5
    assert inside("explain", home / "run", "3").returncode == 0
    assert inside("review", home / "run").returncode == 0
    # Waivers and decisions go by id and label.
    assert inside("waive", home / "run", "0", "--reason", "seen").returncode == 0
    assert inside(*words).returncode == 0
    assert flagged(home / "run") == WRONG - {0}


def test_the_order_of_classes_comes_from_the_header_and_rows_from_ids(inside: Run, table: Path) -> None:
    home = table.parent
    probs = np.load(home / "p.npy")
    order = np.random.default_rng(1).permutation(ROWS)
    columns = {"id": [f"k{i}" for i in order], "cat": probs[order, 2], "ant": probs[order, 0], "bee": probs[order, 1]}
    pq.write_table(pa.table(columns), home / "p.parquet")
    done = inside("scan", table, "--predictions", home / "p.parquet", "--id-column", "key", "-o", home / "run")
    assert done.returncode == 0, done.stderr
    assert flagged(home / "run") == WRONG
    np.savez(home / "p.npz", probabilities=probs[order], ids=[f"k{i}" for i in order], classes=["ant", "bee", "cat"])
    done = inside("scan", table, "--predictions", home / "p.npz", "--id-column", "key", "-o", home / "b", "--no-review")
    assert done.returncode == 0, done.stderr
    assert flagged(home / "b") == WRONG
    lists = pa.table({"ids": [f"k{i}" for i in order], "v": list(np.load(home / "e.npy")[order])})
    pq.write_table(lists, home / "e.parquet")
    done = inside(
        "scan", table, "--embeddings", home / "e.parquet", "--id-column", "key", "-o", home / "c", "--no-review"
    )
    assert done.returncode == 0, done.stderr
    assert flagged(home / "c") >= WRONG


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("nan", "'5' (row 5) has a NaN"),
        ("short", "119 rows, and the table has 120"),
        ("sum", "'7' (row 7) are below 0, or add up to 2"),
        ("classes", "nothing says which column"),
        ("unknown", "no column for the class 'cat'"),
        ("shape", "an array of shape (120,)"),
        ("pickle", "cannot be read"),
        ("twice", "the id '0' is there twice"),
        ("missing", "no vector for the id '119'"),
    ],
)
def test_vectors_that_do_not_fit_are_refused_by_name(inside: Run, table: Path, damage: str, said: str) -> None:
    home, options = table.parent, ["--classes", "ant,bee,cat"]
    probs, file = np.load(home / "p.npy"), home / "x.npy"
    if damage == "nan":
        probs[5, 1] = np.nan
    elif damage == "short":
        probs = probs[1:]
    elif damage == "sum":
        probs[7] *= 2
    elif damage == "classes":
        options = []
    elif damage == "unknown":
        options = ["--classes", "ant,bee,cow"]
    elif damage == "shape":
        probs = probs[:, 0]
    np.save(file, probs)
    if damage == "pickle":
        np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    if damage in ("twice", "missing"):
        ids = [str(i) for i in range(ROWS)]
        ids[-1] = "0" if damage == "twice" else "nobody"
        file = home / "x.npz"
        np.savez(file, p=probs, ids=ids)
    done = inside("scan", table, "--predictions", file, *options, "-o", home / "run")
    assert done.returncode == 3, done.stderr
    assert said in done.stderr.replace("\n", " ")
    assert not (home / "run").exists()


def test_small_rounding_is_mended_and_in_sample_predictions_are_warned_about(inside: Run, table: Path) -> None:
    home = table.parent
    given = pd.read_csv(table)["label"].map({"ant": 0, "bee": 1, "cat": 2}).to_numpy()
    probs = np.full((ROWS, 3), 0.01)
    probs[np.arange(ROWS), given] = 0.9795  # adds up to 0.9995
    np.save(home / "x.npy", probs)
    done = inside("scan", table, "--predictions", home / "x.npy", "--classes", "ant,bee,cat", "-o", home / "run")
    assert done.returncode == 0, done.stderr
    assert "look as if the model was trained on" in done.stderr
    stored = np.stack(pq.read_table(home / "run/probabilities.parquet")["probabilities"].to_pylist())
    assert np.allclose(stored.sum(axis=1), 1)


def test_arrays_are_taken_in_python_and_images_are_shown_where_the_table_has_them(tmp_path: Path, table: Path) -> None:
    report = ns.scan(table, predictions=np.load(tmp_path / "p.npy"), classes="ant,bee,cat", output=tmp_path / "a")
    assert set(report.corrupted["row"].to_pylist()) == WRONG
    names = []
    for i in range(ROWS):
        names.append(paint(tmp_path / f"{i}.png", list(COLOURS.values())[i % 3], seed=i).name)
    frame = pd.read_csv(table).assign(path=names)
    frame.to_csv(tmp_path / "shown.csv", index=False)
    report = ns.scan(tmp_path / "shown.csv", embeddings=np.load(tmp_path / "e.npy"), output=tmp_path / "b")
    assert report.table["path"].to_pylist() == names
    assert "data:image/webp" in (tmp_path / "b/review.html").read_text()


@pytest.mark.parametrize(
    "options",
    [
        ("--embeddings", "e.npy", "--predictions", "p.npy"),
        ("--classes", "a,b"),
    ],
)
def test_options_that_exclude_each_other_are_refused(inside: Run, table: Path, options: tuple[str, ...]) -> None:
    named = [str(table.parent / word) if word.endswith(".npy") else word for word in options]
    assert inside("scan", table, *named).returncode == 2


def test_rows_stay_aligned_with_a_limit_and_a_split(inside: Run, table: Path) -> None:
    home = table.parent
    frame = pd.read_csv(table).assign(split=["train", "val"] * (ROWS // 2))
    frame.to_csv(home / "s.csv", index=False)
    base = ("scan", home / "s.csv", "--predictions", home / "p.npy", "--classes", "ant,bee,cat", "--no-review")
    for number, options in enumerate((("--limit", "60"), ("--split", "train"), ("--split", "val", "--limit", "30"))):
        done = inside(*base, *options, "-o", home / f"r{number}")
        assert done.returncode == 0, done.stderr
        found = ns.read_report(home / f"r{number}").corrupted
        assert all(row["label"] != row["true_label"] for row in found.to_pylist())
    short = np.load(home / "p.npy")[:60]
    np.save(home / "short.npy", short)
    wrong = inside(*base[:3], home / "short.npy", *base[4:], "--limit", "60", "-o", home / "r9")
    assert wrong.returncode == 3
    assert "60 rows, and the table has 120" in wrong.stderr


def test_a_column_of_the_table_is_no_embedding_and_options_of_images_are_refused(inside: Run, table: Path) -> None:
    home = table.parent
    columns = {"key": np.arange(ROWS), "label": np.arange(ROWS) % 3}
    columns |= {f"f{i}": column for i, column in enumerate(np.load(home / "e.npy").T)}
    pq.write_table(pa.table(columns), home / "leak.parquet")
    done = inside("scan", table, "--embeddings", home / "leak.parquet", "-o", home / "run")
    assert done.returncode == 3
    assert "is no part of an embedding" in done.stderr
    images_only = ("--weights", "imagenet", "-o", home / "run")
    assert inside("scan", table, "--embeddings", home / "e.npy", *images_only).returncode == 2
    header = pa.table(dict(zip(NAMES, np.load(home / "p.npy").T, strict=True)))
    pq.write_table(header, home / "h.parquet")
    words = ("scan", table, "--predictions", home / "h.parquet", "-o", home / "run")
    assert inside(*words, "--retrain").returncode == 2
    assert inside(*words, "--classes", "cat,bee,ant").returncode == 3


def test_python_takes_lists_tables_and_tensors(table: Path, tmp_path: Path) -> None:
    probs = np.load(tmp_path / "p.npy")
    frame = pd.DataFrame(probs[:, ::-1], columns=NAMES[::-1])
    for number, (given, classes) in enumerate(
        ((probs.tolist(), NAMES), (frame, None), (torch.tensor(probs), list(NAMES)))
    ):
        options = {} if classes is None else {"classes": classes}
        report = ns.scan(table, predictions=given, output=tmp_path / f"r{number}", review=False, **options)
        assert set(report.corrupted["row"].to_pylist()) == WRONG
    with pytest.raises(UsageError, match="not an array of numbers"):
        ns.scan(table, predictions={"a": 1}, output=tmp_path / "x")


def test_images_are_exported_and_rows_compared_without_hashes_of_files(inside: Run, table: Path) -> None:
    home = table.parent
    names = [paint(home / f"{i}.png", list(COLOURS.values())[i % 3], seed=i).name for i in range(ROWS)]
    pd.read_csv(table).assign(path=names).to_csv(home / "shown.csv", index=False)
    for run in ("a", "b"):
        words = ("scan", home / "shown.csv", "--predictions", home / "p.npy", "--classes", "ant,bee,cat", "--no-review")
        assert inside(*words, "-o", home / run).returncode == 0
    assert inside("export", home / "a", "--to", "folder", "-o", home / "out").returncode == 0
    assert len(list((home / "out").rglob("*.png"))) == len(WRONG)
    plain = ("scan", table, "--predictions", home / "p.npy", "--classes", "ant,bee,cat", "--no-review")
    for run in ("c", "d"):
        assert inside(*plain, "-o", home / run).returncode == 0
    counts = json.loads(inside("diff", home / "c", home / "d", "--json").stdout)["counts"]
    assert (counts["persistent"], counts["gone"]) == (len(WRONG), 0)
    (home / "d.csv").write_text("id,label\n0,ant\n")
    done = inside("apply", home / "c", home / "d.csv", "-o", home / "new.csv", "--json")
    assert json.loads(done.stdout)["scan"] == ["--predictions", str(home / "p.npy"), "--classes", "ant,bee,cat"]
