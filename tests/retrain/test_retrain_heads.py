"""`retrain` on a frozen run: heads on stored features, compared by the given labels that they were not shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import noisesieve as ns
from noisesieve.commands._retrain_summaries import ALL, CORRECTED, KEPT, SCAN, SUGGESTED
from noisesieve.learn.frozen.features import Features
from noisesieve.learn.frozen.head_data import HeadData
from noisesieve.report.saved_model import load_model
from noisesieve.retrain.comparison import choose
from noisesieve.retrain.head_candidates import Candidate, correct_labels
from tests.conftest import COLOURS, REPOSITORY, Run, paint, validate


@pytest.fixture
def noisy(tmp_path: Path) -> Path:
    """Embeddings of 600 rows in four overlapping classes; a third of the labels moved on by one."""
    rng = np.random.default_rng(0)
    truth = np.arange(600) % 4
    vectors = rng.normal(size=(4, 32))[truth] * 1.1 + rng.normal(size=(600, 32)) * 1.2
    given = np.where(rng.random(600) < 0.33, (truth + 1) % 4, truth)
    np.save(tmp_path / "e.npy", vectors.astype(np.float32))
    lines = [f"r{i},class {given[i]},class {truth[i]}" for i in range(600)]
    (tmp_path / "t.csv").write_text("\n".join(["id,label,true_label", *lines]) + "\n")
    return tmp_path / "t.csv"


def scan(inside: Run, table: Path) -> tuple[str | Path, ...]:
    vectors = ("--embeddings", table.with_name("e.npy"), "--id-column", "id")
    done = inside("scan", table, *vectors, "-o", "run", "--no-review")
    assert done.returncode == 0, done.stderr
    return vectors


def test_embeddings_are_retrained_in_several_ways_and_the_best_is_saved(inside: Run, noisy: Path) -> None:
    vectors = scan(inside, noisy)
    done = inside("retrain", "run", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    validate(found, "retrain")
    rows = {row["name"]: row for row in found["candidates"]}
    assert list(rows) == [SCAN, ALL, KEPT, SUGGESTED, CORRECTED]
    assert rows[ALL]["rows"] == 600 > rows[KEPT]["rows"]
    assert rows[found["best"]]["agreement"] == max(row["agreement"] for row in found["candidates"])
    assert found["chosen"] in (found["best"], CORRECTED)
    assert rows[KEPT]["agreement"] > rows[ALL]["agreement"]
    frame = ns.read_report("run").to_pandas()
    shown = (frame["predicted_label"] == frame["label"]).mean()  # of all rows: agreement on kept ones would be circular
    assert rows[SCAN]["agreement"] == pytest.approx(shown)
    checked = inside("check", noisy, *vectors, "--model", "run-retrained", "-o", "b.parquet", "--max-corrupted", "none")
    assert checked.returncode == 0, checked.stderr
    batch = ns.read_report("b.parquet").to_pandas()
    assert (batch["predicted_label"] == frame["true_label"]).mean() > 0.8
    again = inside("retrain", "run")
    assert again.returncode == 0
    assert "finished already" in again.stderr


def test_a_frozen_run_of_photos_is_measured_on_a_test_set(inside: Run, tmp_path: Path) -> None:
    for part, count in (("train", 30), ("test", 8)):
        for c, (name, colour) in enumerate(COLOURS.items()):
            for i in range(count):
                paint(
                    tmp_path / part / name / f"{i}.png",
                    colour,
                    seed=1000 * c + i + 500 * (part == "test"),
                    size=(64, 64),
                )
    for i in range(8):
        paint(tmp_path / "train/red" / f"wrong{i}.png", COLOURS["blue"], seed=9000 + i, size=(64, 64))
    assert inside("scan", tmp_path / "train", "-o", "run", "--no-review").returncode == 0
    done = inside("retrain", "run", "--test", tmp_path / "test")
    assert done.returncode == 0, done.stderr
    assert "Saved: " in done.stdout
    assert "test accuracy" in done.stdout
    document = json.loads(Path("run-retrained/retrain.json").read_text())
    assert document["test_rows"] == 24
    best = next(row for row in document["candidates"] if row["name"] == document["chosen"])
    assert best["accuracy"] == 1.0
    checked = inside("check", tmp_path / "test", "--model", "run-retrained", "--max-corrupted", "0")
    assert checked.returncode == 0, checked.stderr
    # The README's lines load it with torch and timm alone.
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = next(block for block in blocks if "timm.create_model" in block).replace("RUN-retrained", "run-retrained")
    model = load_model(Path("run-retrained"), torch.device("cpu"), ranks=False)
    images = torch.randn((5, 3, model.image_size, model.image_size))
    found = {"images": images}
    with torch.inference_mode():
        exec(lines, found)
        torch.testing.assert_close(found["logits"], model.network(images), rtol=1e-3, atol=1e-3)


def test_decided_labels_count_as_clean(inside: Run, noisy: Path) -> None:
    scan(inside, noisy)
    frame = ns.read_report("run").to_pandas()
    wrong = frame[frame["label"] != frame["true_label"]].head(20)
    Path("d.csv").write_text("id,label\n" + "".join(f"{r.id},{r.true_label}\n" for r in wrong.itertuples()))
    done = inside("retrain", "run", "--decisions", "d.csv", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]["decided"] == 20


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--weight", "1"), "--weight: only for a network"),
        (("--no-freeze",), "no images"),
        (("--test", "t"), "embeddings"),
    ],
)
def test_what_heads_do_not_have_is_refused(options: tuple[str, ...], problem: str, inside: Run, noisy: Path) -> None:
    scan(inside, noisy)
    refused = inside("retrain", "run", *options)
    assert refused.returncode in (2, 3)
    assert problem in refused.stderr
    assert not Path("run-retrained/retrain.json").exists()


def test_a_copy_of_the_scans_model_does_not_win_by_the_rows_that_the_sieve_kept() -> None:
    rng = np.random.default_rng(0)
    given = rng.integers(0, 4, 2000)
    scan = np.where(rng.random(2000) < 0.6, given, (given + 1) % 4)
    better = np.where(rng.random(2000) < 0.7, given, (given + 1) % 4)
    kept = scan == given
    hits = {SCAN: scan == given, "copy": (scan == given).copy(), "better": better == given}
    assert hits["copy"][kept].all()  # on kept rows nothing beats it
    assert not hits["better"][kept].all()
    assert choose(hits, "copy") == ("better", "better")


def test_corrected_labels_are_saved_unless_another_way_leads_by_more_than_chance() -> None:
    rows = np.arange(1000)
    hits = {"most": rows % 10 < 7, CORRECTED: (rows % 10 > 2) & (rows > 3)}  # other rows, three fewer in all
    assert choose(hits, CORRECTED) == (CORRECTED, "most")
    hits[CORRECTED] = rows % 10 < 6  # a part of the same rows
    assert choose(hits, CORRECTED) == ("most", "most")


def test_labels_are_corrected_where_the_true_class_is_sure_and_where_nobody_decided() -> None:
    rng = np.random.default_rng(2)
    truth = np.arange(900) % 3
    given = np.where(rng.random(900) < 0.3, (truth + 1) % 3, truth)
    probs = np.full((900, 3), 0.05)
    probs[np.arange(900), truth] = 0.9
    probs[:30] = 1 / 3  # nothing is known of these
    codes = torch.from_numpy(given)
    data = HeadData(Features.in_memory({"x": np.zeros((900, 1, 1), np.float16)}), codes, 3, torch.zeros(900).bool())
    decided, unusable = np.zeros(900, dtype=np.bool_), np.zeros(900, dtype=np.bool_)
    decided[40], unusable[41] = True, True
    known = Candidate("", np.full(900, 2), torch.from_numpy(decided))
    found = correct_labels("corrected", probs, data, known, unusable)
    used = found.used.numpy()
    rest = np.arange(900) >= 50
    assert (found.labels[rest] == truth[rest]).all()
    assert used[rest].all()
    assert found.labels[40] == 2
    assert used[40]
    assert not used[41]
