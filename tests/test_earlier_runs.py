"""A run folder of an earlier version is finished, reviewed, applied, explained, checked and compared by this one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import noisesieve as ns
from tests.conftest import SAMPLE, Run

RUNS = Path(__file__).parent / "fixtures"
DIGITS = SAMPLE / "digits"


@pytest.fixture(params=sorted(path.name for path in RUNS.iterdir()))
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of `noisesieve scan digits --limit 200` by the version of that commit."""
    shutil.copytree(RUNS / request.param, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_of_an_earlier_method_is_named_and_kept(inside: Run, earlier: Path) -> None:
    before = (earlier / "report.parquet").read_bytes()
    ended = inside("scan", DIGITS, "--limit", "200", "-o", earlier)
    assert ended.returncode == 5, ended.stderr
    assert "a finished run of method 1" in ended.stderr
    assert "--force" in ended.stderr
    assert (earlier / "report.parquet").read_bytes() == before


def test_it_is_compared_with_a_run_of_this_method(inside: Run, earlier: Path) -> None:
    ended = inside("scan", DIGITS, "--limit", "200", "-o", "new", "--no-review")
    assert ended.returncode == 0, ended.stderr
    shown = inside("diff", earlier, "new")
    assert shown.returncode == 0, shown.stderr
    assert "decided by different methods (1 and 2)" in " ".join(shown.stdout.split())
    found = json.loads(inside("diff", earlier, "new", "--json").stdout)
    assert (found["before"]["method"], found["after"]["method"]) == (1, 2)
    assert found["matched"] == 200


def test_it_is_reviewed_exported_and_applied(inside: Run, earlier: Path, tmp_path: Path) -> None:
    moved = ("--data", DIGITS)
    (earlier / "review.html").unlink()
    assert inside("review", earlier, *moved).returncode == 0
    assert "data:image/webp" in (earlier / "review.html").read_text()
    out = ("-o", tmp_path / "out")
    assert inside("export", earlier, "--to", "folder", "--only", "all", "--files", "copy", *out, *moved).returncode == 0
    assert len(list((tmp_path / "out").rglob("*.png"))) == 200
    suspect = ns.read_report(earlier).corrupted["id"][0].as_py()
    (tmp_path / "d.csv").write_text(f"path,decision,label\n{suspect},accept,1\n")
    applied = inside("apply", earlier, tmp_path / "d.csv", "-o", tmp_path / "new.csv", *moved, "--json")
    assert applied.returncode == 0, applied.stderr
    assert json.loads(applied.stdout)["decided"] == 1


def test_it_is_explained_checked_compared_and_measured(inside: Run, earlier: Path, tmp_path: Path) -> None:
    assert inside("explain", earlier, "0", "--data", DIGITS, "--json").returncode == 0
    check = inside("check", DIGITS, "--model", earlier, "--limit", "60", "--json", "--exit-zero")
    assert check.returncode == 0, check.stderr
    assert json.loads(check.stdout)["scored"] == 60
    assert check.stderr.count("saved by an earlier version") == 1
    again = inside("diff", earlier, earlier, "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["counts"]["new"] == 0
    truth = inside("evaluate", earlier, "--truth", SAMPLE / "truth.csv", "--json")
    assert truth.returncode == 0, truth.stderr
    waived = inside("waive", earlier, "0", "--reason", "seen", "--file", tmp_path / "w.csv")
    assert waived.returncode == 0, waived.stderr


def test_a_later_schema_is_refused_with_the_reason(inside: Run, earlier: Path) -> None:
    document = json.loads((earlier / "run.json").read_text())
    (earlier / "run.json").write_text(json.dumps({**document, "schema_version": 99}))
    ended = inside("review", earlier, "--data", DIGITS)
    assert ended.returncode == 5
    assert "schema version 99" in ended.stderr
