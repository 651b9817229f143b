"""`bench`: every method on the same small data, the real cleanlab included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from noisesieve.bench.methods import METHODS
from tests.conftest import QUICK, SAMPLE, Run, few_digits, validate


@pytest.mark.slow
def test_two_methods_on_the_sample_data(inside: Run, tmp_path: Path) -> None:
    data = few_digits(tmp_path / "digits", each=80)
    done = inside(
        *("bench", data, "--truth", SAMPLE / "truth.csv", "--methods", "noisesieve,ce", "--epochs", "24"),
        *("--warmup-epochs", "12", "-o", "b.json", "--markdown", "b.md"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "work/b.json").read_text())
    ours, plain = found["methods"]
    assert (ours["method"], plain["method"]) == ("noisesieve", "ce")
    assert ours["f1"] > 0.8 > plain["f1"]
    assert ours["passes"] == pytest.approx(plain["passes"], rel=0.3)
    table = (tmp_path / "work/b.md").read_text()
    assert f"| noisesieve | {ours['flagged']} |" in table
    assert found["machine"]["processor"] in table
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_every_method_runs_and_shares_the_warm_up(inside: Run, colours: Path) -> None:
    assert inside("inject", colours, "--noise", "symmetric", "--rate", "0.2", "-o", "n.csv").returncode == 0
    longer = ("--weights", "none", "--epochs", "12", "--warmup-epochs", "4", "--sieve-start", "8")
    options = ("--truth-column", "true_label", "--root", colours, *longer, "--json")
    done = inside("bench", "n.csv", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    validate(found, "bench")
    rows = {row["method"]: row for row in found["methods"]}
    assert list(rows) == list(METHODS)
    assert rows["cleanlab"]["passes"] == pytest.approx(5 * 0.8 * 12)  # five trainings of 12 epochs on four fifths
    assert rows["cleanlab"]["average_precision"] > 0.5
    for figure in ("f1", "average_precision"):
        assert rows["cleanlab-best"][figure] >= rows["cleanlab"][figure]
    assert done.stderr.count("warm-up 1/12") == 6  # the shared one, and cleanlab's five folds
    for row in rows.values():
        assert row["seconds"] > 0
        assert 0 <= row["average_precision"] <= 1


@pytest.mark.parametrize("epochs", [QUICK, ("--epochs", "12", "--warmup-epochs", "4"), ("--epochs", "5")])
def test_the_answer_does_not_depend_on_which_methods_run_beside(
    inside: Run, colours: Path, epochs: tuple[str, ...]
) -> None:
    assert inside("inject", colours, "--noise", "symmetric", "--rate", "0.2", "-o", "n.csv").returncode == 0
    options = ("--root", colours, *epochs, "--json", "-q", "--methods")
    alone = json.loads(inside("bench", "n.csv", *options, "noisesieve").stdout)["methods"][0]
    beside = json.loads(inside("bench", "n.csv", *options, "ce,noisesieve").stdout)["methods"][1]
    for row in (alone, beside):
        del row["seconds"], row["passes"]
    assert alone == beside


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--methods", "magic", "--truth", SAMPLE / "truth.csv"), 2, "noisesieve, paper, ce"),
        ((), 2, "--truth"),
        (("--truth", "nowhere.csv"), 3, "nowhere.csv"),
        (("--truth", SAMPLE / "truth.csv", "-o", SAMPLE / "truth.csv/b.json"), 4, "is not writable"),
        (("--truth", SAMPLE / "truth.csv", "--methods", ","), 2, "--methods is empty"),
    ],
)
def test_nonsense_is_refused_before_training(inside: Run, options: tuple[object, ...], code: int, says: str) -> None:
    done = inside("bench", SAMPLE / "digits", *options)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "warm-up" not in done.stderr


def test_a_truth_that_finds_no_fault_is_no_bench(inside: Run, colours: Path) -> None:
    rows = [f"{file.parent.name}/{file.name},{file.parent.name}" for file in sorted(colours.rglob("*.png"))]
    (colours.parent / "truth.csv").write_text("path,label\n" + "\n".join(rows) + "\n")
    done = inside("bench", colours, "--truth", colours.parent / "truth.csv")
    assert done.returncode == 3
    assert "no label is wrong" in done.stderr
