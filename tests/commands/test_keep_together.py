"""`scan --keep-together`, and what a run of this method leaves for `check`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import noisesieve as ns
from tests.conftest import Run

ROWS, CLASSES, WIDTH = 600, 4, 96


@pytest.fixture
def bursts(tmp_path: Path) -> Path:
    """Embeddings of 150 objects, each four times with small changes; every fifth object has a wrong label, whole."""
    rng = np.random.default_rng(0)
    objects = ROWS // 4
    truth = np.arange(objects) % CLASSES
    centres = rng.normal(size=(CLASSES, WIDTH))
    own = centres[truth] + rng.normal(size=(objects, WIDTH)) * 1.3
    given = np.where(np.arange(objects) % 5 == 0, (truth + 1) % CLASSES, truth)
    vectors = own.repeat(4, axis=0) + rng.normal(size=(ROWS, WIDTH)) * 0.02
    np.save(tmp_path / "e.npy", vectors.astype(np.float32))
    with (tmp_path / "t.csv").open("w", newline="") as file:
        rows = [(f"r{i}", f"class {given[i // 4]}", f"class {truth[i // 4]}", f"object {i // 4}") for i in range(ROWS)]
        csv.writer(file).writerows([("id", "label", "true_label", "object"), *rows])
    return tmp_path / "t.csv"


def recall(run: str) -> float:
    frame = ns.read_report(run).to_pandas()
    wrong = frame["label"] != frame["true_label"]
    return float((frame["verdict"][wrong] == "corrupted").mean())


def test_a_neighbour_with_the_same_wrong_label_vouches_for_nobody(inside: Run, bursts: Path) -> None:
    start = ("scan", bursts, "--embeddings", bursts.with_name("e.npy"), "--id-column", "id", "--no-review")
    assert inside(*start, "-o", "alone").returncode == 0
    kept = inside(*start, "-o", "kept", "--keep-together", "object")
    assert kept.returncode == 0, kept.stderr
    assert "150 groups of rows" in kept.stderr
    assert recall("kept") > recall("alone") + 0.15
    facts = ns.read_report("kept").summary.training.facts
    assert (facts.groups, facts.grouped_rows) == (150, ROWS)
    planted = inside("evaluate", "kept", "--plant", "5%", "--json")  # scans again with the same folds
    assert planted.returncode == 0, planted.stderr
    folder = json.loads(planted.stdout)["run"]
    assert ns.read_report(folder).summary.training.facts.groups == 150


def test_what_cannot_be_kept_together_is_refused(inside: Run, bursts: Path, colours: Path) -> None:
    vectors = ("--embeddings", bursts.with_name("e.npy"), "--id-column", "id")
    unknown = inside("scan", bursts, *vectors, "-o", "run", "--keep-together", "patient")
    assert unknown.returncode == 2
    assert "--keep-together patient: no such column" in unknown.stderr
    trained = inside("scan", colours, "-o", "run2", "--keep-together", "x", "--weights", "none")
    assert trained.returncode == 2
    assert not Path("run2/report.parquet").exists()


def test_a_class_of_one_group_is_named(inside: Run, bursts: Path) -> None:
    with bursts.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["object"] = "one" if row["label"] == "class 3" else row["object"]
    with bursts.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    done = inside(
        *("scan", bursts, "--embeddings", bursts.with_name("e.npy"), "--id-column", "id", "--no-review"),
        *("-o", "run", "--keep-together", "object"),
    )
    assert done.returncode == 0, done.stderr
    assert "one group only" in done.stderr
    assert "class 3" in done.stderr


def test_check_ranks_with_what_the_scan_ranked_with(inside: Run, bursts: Path) -> None:
    vectors = ("--embeddings", bursts.with_name("e.npy"), "--id-column", "id")
    assert inside("scan", bursts, *vectors, "-o", "run", "--no-review", "--beta", "2").returncode == 0
    tensors = load_file("run/model.safetensors")
    assert {"fc.weight", "ce.weight", "noise_model.transition", "combined.transition"} <= set(tensors)
    card = json.loads(Path("run/model.json").read_text())
    assert card["schema_version"] == 2
    assert card["rank_model"]["noise_model"]["temperature"] > 0
    done = inside("check", bursts, *vectors, "--model", "run", "-o", "batch.parquet", "--max-corrupted", "none")
    assert done.returncode == 0, done.stderr
    scan, batch = ns.read_report("run").to_pandas(), ns.read_report("batch.parquet").to_pandas()
    both = np.corrcoef(scan["rank"], batch["rank"])[0, 1]
    assert both > 0.7  # in-sample here, out of fold there
    along = batch.sort_values("rank")["corruption_probability"].to_numpy()
    assert (np.diff(along) <= 1e-6).all()
