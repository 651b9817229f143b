"""`explain` answers why a row was flagged, or why not, in numbers that add up."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import noisesieve as ns
from noisesieve.cli.explain import sparkline
from tests.conftest import Run, validate
from tests.runs import built_once, make_run, scan_few_digits


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quick real run on a part of the sample data."""
    return built_once(tmp_path_factory, "few-digits", scan_few_digits) / "run"


def test_the_terms_the_margin_history_and_the_neighbours_of_a_suspect(inside: Run, digits: Path) -> None:
    suspect = ns.read_report(digits).corrupted.to_pylist()[0]
    done = inside("explain", digits, suspect["id"], "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    validate(found, "explain")
    assert found["loss"] + found["regularizer"] == pytest.approx(found["regularized_loss"])
    assert found["regularized_loss"] - found["threshold"] == pytest.approx(found["margin"])
    assert found["loss"] == pytest.approx(-math.log(found["label_probability"] + found["sieve_eps"]), rel=1e-5)
    margin_history = found["margin_history"]
    assert (
        margin_history["last_epoch"] - margin_history["first_epoch"] + 1 == len(margin_history["margins"]) == 4
    )  # epochs 5 to 8
    assert [group["label"] for group in found["neighbours"]] == [suspect["label"], suspect["suggested_label"]]
    clean = set(ns.read_report(digits).to_pandas().query("verdict == 'clean'")["id"])
    for group in found["neighbours"]:
        ids = [example["id"] for example in group["examples"]]
        assert 0 < len(ids) <= 3
        assert set(ids) <= clean
        assert all(name.startswith(f"{group['label']}/") for name in ids)
        assert suspect["id"] not in ids
    alike = [group["examples"][0]["similarity"] for group in found["neighbours"]]
    assert alike[1] > alike[0]  # it looks like what is suggested
    assert Path(found["file"]).is_file()


def test_people_read_a_sentence_a_line_of_arithmetic_and_a_sparkline(inside: Run, digits: Path) -> None:
    report = ns.read_report(digits)
    suspect = report.corrupted.to_pylist()[0]
    done = inside("explain", digits, suspect["id"])
    for text in ("corrupted", "looks like", "loss", "+ CR", "≥ α", "margin", "nearest clean", "suggested", "█"):
        assert text in done.stdout
    clean = report.to_pandas().query("verdict == 'clean'").iloc[0]["id"]
    done = inside("explain", digits, clean)
    assert "< α" in done.stdout
    assert ": clean" in done.stdout
    assert "is also the predicted class" in done.stdout or "has a smaller loss" in done.stdout


def test_a_row_is_found_by_number_and_a_typo_gets_a_proposal(inside: Run, digits: Path) -> None:
    report = ns.read_report(digits)
    first = report.table["id"][0].as_py()
    assert json.loads(inside("explain", digits, "0", "--json").stdout)["id"] == first
    lost = inside("explain", digits, first[:-5])
    assert lost.returncode == 3
    assert "Did you mean" in lost.stderr
    name = first.split("/")[1]
    assert repr(first) in inside("explain", digits, name).stderr


def test_unreadable_rows_and_lost_datasets_are_explained_too(inside: Run, colours: Path, tmp_path: Path) -> None:
    (colours / "green/broken.png").write_bytes(b"no image")
    run = make_run(colours, tmp_path / "run", {"red/0.png": "green"}).path.parent
    done = inside("explain", run, "green/broken.png")
    assert "not an image" in done.stdout
    colours.rename(colours.with_name("gone"))
    done = inside("explain", run, "red/0.png", "--json")
    assert done.returncode == 0, done.stderr
    assert "Similar images are left out" in done.stderr
    found = json.loads(done.stdout)
    assert (found["neighbours"], found["file"]) == (None, None)
    assert found["margin_history"]["margins"] == [1.0, 1.0, 1.0]


def test_a_model_that_was_tampered_with_is_not_used(inside: Run, digits: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(digits, copy)
    weights = copy / "model.safetensors"
    blob = bytearray(weights.read_bytes())
    blob[-3] ^= 1
    weights.write_bytes(bytes(blob))
    done = inside("explain", copy, "0")
    assert done.returncode == 5
    assert "changed since the run" in done.stderr


def test_the_sparkline_is_scaled_around_the_threshold() -> None:
    line = sparkline([-2.0, -1.0, 0.0, 2.0])
    assert line.plain == "▁▃▅█" or line.plain[0] == "▁"
    assert line.plain[-1] == "█"
    assert [span.style for span in line.spans] == ["green", "green", "red", "red"]
    assert sparkline([0.0]).plain == "▁"
