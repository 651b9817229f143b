"""`check` as CI sees it: exit codes, rules, waivers, and what the ecosystem's readers make of the files."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import junitparser
import numpy as np
import pandas as pd
import pytest
import sarif_pydantic
import yaml

import noisesieve as ns
from noisesieve.core.errors import OutputError
from noisesieve.core.options import parse_limit
from noisesieve.gate.github import commands, summary
from noisesieve.gate.markdown import escape, render
from noisesieve.gate.policy import BatchCounts, RuleResult, Suspect, apply_policy, binomial_tail, lower_bound
from noisesieve.gate.policy_settings import Policy
from noisesieve.gate.result import GateResult
from noisesieve.report.run import MAIN, RunFolder
from noisesieve.report.waivers import read_waivers
from tests.conftest import REPOSITORY, SAMPLE, Run, paint, validate
from tests.runs import built_once, make_run

TRAINING = {"weights": "none", "epochs": 24, "warmup_epochs": 16, "ramp_epochs": 3, "sieve_start": 20, "flip": False}


def true_digits() -> dict[str, list[str]]:
    """Class → images of the sample data that really show it."""
    found: dict[str, list[str]] = {}
    with (SAMPLE / "truth.csv").open() as file:
        for row in csv.DictReader(file):
            found.setdefault(row["label"], []).append(row["path"])
    return found


def lay_out(folder: Path, images: dict[str, list[str]]) -> Path:
    for label, paths in images.items():
        for path in paths:
            target = folder / label / path.replace("/", "-")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SAMPLE / "digits" / path, target)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of true digits, a good batch that it has not seen, and a bad one."""
    return built_once(tmp_path_factory, "gate", build_home)


def build_home(home: Path) -> None:
    digits = true_digits()
    data = lay_out(home / "data", {label: paths[:100] for label, paths in digits.items()})
    ns.scan(data, output=home / "run", cache_dir=home / "cache", review=False, **TRAINING)
    lay_out(home / "good", {label: paths[100:115] for label, paths in digits.items()})
    lay_out(home / "bad", {label: paths[100:109] for label, paths in digits.items()})
    names = sorted(digits)
    for i, label in enumerate(names):  # six of fifteen under the next class's name
        lay_out(home / "bad", {names[(i + 1) % 10]: digits[label][109:115]})


def test_a_good_batch_passes_and_a_bad_one_fails(inside: Run, home: Path, tmp_path: Path) -> None:
    good = inside("check", home / "good", "--model", home / "run", "--max-corrupted", "20%", "--json")
    assert good.returncode == 0, good.stderr
    found = json.loads(good.stdout)
    validate(found, "check")
    assert found["passed"]
    assert found["in_training"] == 0
    assert 0 <= found["base_rate"] < 0.2
    bad = inside("check", home / "bad", "--model", home / "run", "--max-corrupted", "20%", "-o", tmp_path / "b.parquet")
    assert bad.returncode == 1, bad.stderr
    assert "FAILED: max-corrupted is " in bad.stdout.replace("\n", " ")
    assert re.search(r"max-corrupted +20% .* FAIL", bad.stdout)
    assert "clean rows of its own scan" in bad.stdout
    assert max(map(len, bad.stdout.splitlines())) <= 80
    report = ns.read_report(tmp_path / "b.parquet")
    frame = report.to_pandas()
    assert len(frame) == 150
    wrong = np.array([truth != label for truth, label in zip(_origin(frame), frame["label"], strict=True)])
    flagged = (frame["verdict"] == "corrupted").to_numpy()
    assert wrong.sum() == 60
    assert (flagged & wrong).sum() > 45
    assert frame["flagged_epochs"].isna().all()
    ranked = frame.sort_values("rank")["corruption_probability"].to_numpy()
    assert (np.diff(ranked) <= 1e-6).all()
    assert inside("check", home / "bad", "--model", home / "run", "--exit-zero").returncode == 0


def _origin(frame: pd.DataFrame) -> list[str]:
    truth = dict(pd.read_csv(SAMPLE / "truth.csv", dtype=str)[["path", "label"]].itertuples(index=False))
    return [truth[re.sub(r"^(\d)-", r"\1/", path.split("/")[1])] for path in frame["path"]]


def test_every_exit_code(inside: Run, home: Path, tmp_path: Path) -> None:
    model = ("--model", home / "run")
    (tmp_path / "empty").mkdir()
    assert inside("check", tmp_path / "empty", *model).returncode == 3
    assert inside("check", tmp_path / "nowhere", *model).returncode == 3
    (tmp_path / "none.csv").write_text("path,label\n")
    assert inside("check", tmp_path / "none.csv", *model).returncode == 3
    (tmp_path / "lost.csv").write_text("path,label\nx.png,1\n")
    assert inside("check", tmp_path / "lost.csv", *model).returncode == 3  # not one image can be read
    assert inside("check", home / "good").returncode == 2
    for options in (
        ("--max-corrupted", "much"),
        ("--confidence", "2"),
        ("--max-unknown-classes", "x"),
        ("--group-by", "q"),
    ):
        assert inside("check", home / "good", *model, *options).returncode == 2
    assert inside("check", home / "good", "--model", tmp_path).returncode == 3
    paint(tmp_path / "other/cat/1.png", (9, 9, 9))
    other = inside("check", tmp_path / "other", *model)
    assert other.returncode == 5
    assert "no label is a class of the model" in other.stderr
    shutil.copytree(home / "run", tmp_path / "run")
    weights = tmp_path / "run/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert inside("check", home / "good", "--model", tmp_path / "run").returncode == 5
    shutil.copytree(home / "run", tmp_path / "run2")
    card = tmp_path / "run2/model.json"
    card.write_text(card.read_text().replace('"sieve_eps": 0.3', '"sieve_eps": 1e-30'))
    assert inside("check", home / "good", "--model", tmp_path / "run2").returncode == 5
    (tmp_path / "broken/7").mkdir(parents=True)
    (tmp_path / "broken/7/x.png").write_bytes(b"")
    paint(tmp_path / "broken/owl/x.png", (9, 9, 9))
    assert inside("check", tmp_path / "broken", *model).returncode == 3
    one = lay_out(tmp_path / "one", {"7": true_digits()["7"][100:101]})
    assert inside("check", one, *model, "--max-corrupted", "1").returncode == 0  # a batch of one class, one row
    assert inside("check", one, *model, "--min-examples", "2").returncode == 1


def test_unknown_classes_unreadable_files_and_known_contents_are_named(inside: Run, home: Path, tmp_path: Path) -> None:
    batch = lay_out(tmp_path / "batch", {label: paths[:3] for label, paths in true_digits().items()})
    paint(batch / "owl/1.png", (9, 9, 9))
    (batch / "3/broken.png").write_bytes(b"no image")
    out = tmp_path / "b.parquet"
    done = inside("check", batch, "--model", home / "run", "--json", "--max-corrupted", "none", "-o", out)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["unknown"] == {"owl": 1}
    assert found["unreadable"] == 1
    assert found["unreadable_rows"] == [{"id": "3/broken.png", "status": "not an image of a supported format"}]
    assert "3/broken.png: not an image" in done.stderr
    assert found["in_training"] == 30
    assert {rule["name"]: rule["passed"] for rule in found["rules"]} == {
        "min-examples": True,
        "max-unreadable": False,
        "max-unknown-classes": False,
    }
    frame = ns.read_report(out).to_pandas().set_index("path")
    assert frame.loc["owl/1.png", "verdict"] == "unknown"
    assert np.isnan(frame.loc["owl/1.png", "margin"])
    assert frame.loc["3/broken.png", "verdict"] == "unreadable"
    assert frame["in_training"].sum() == 30
    loose = ("--max-unreadable", "5%", "--max-unknown-classes", "1", "--max-corrupted", "50%")
    assert inside("check", batch, "--model", home / "run", *loose).returncode == 0


def test_a_report_of_known_rows_agrees_with_the_formulas(inside: Run, home: Path, tmp_path: Path) -> None:
    inside("check", home / "good", "--model", home / "run", "--exit-zero", "-o", tmp_path / "g.parquet")
    report = ns.read_report(tmp_path / "g.parquet")
    frame, eps = report.to_pandas(), report.facts.sieve_eps
    assert np.allclose(frame["loss"], -np.log(frame["label_probability"].astype(float) + eps), atol=1e-5)
    assert np.allclose(frame["regularized_loss"] - frame["threshold"], frame["margin"])
    assert ((frame["margin"] >= 0) == (frame["verdict"] == "corrupted")).all()


def test_waivers_hold_for_content_and_label_and_end_with_either(inside: Run, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.parquet"
    (tmp_path / "w.csv").write_text("sha256,label,path,reason,date\n")
    check = ("check", home / "bad", "--model", home / "run", "--json", "--exit-zero", "--waivers", tmp_path / "w.csv")
    before = json.loads(inside(*check, "-o", out).stdout)
    names = [row["path"] for row in before["suspects"][:3]]
    empty = inside("waive", out, *names, "--reason", " ")
    assert empty.returncode == 2
    done = inside("waive", out, *names, "--reason", "=looked, it is right", "--file", tmp_path / "w.csv", "--json")
    assert json.loads(done.stdout)["added"] == 3
    assert inside("waive", out, "no/such.png", "--reason", "x", "--file", tmp_path / "w.csv").returncode == 3
    assert inside("check", home / "bad", "--model", home / "run", "--waivers", tmp_path / "typo.csv").returncode == 3
    again = json.loads(inside("waive", out, names[0], "--reason", "y", "--file", tmp_path / "w.csv", "--json").stdout)
    assert again["added"] == 0
    assert not re.search(r"(^|,)=", (tmp_path / "w.csv").read_text())
    after = json.loads(inside(*check, "-o", tmp_path / "c.parquet").stdout)
    assert (after["waived"], after["corrupted"]) == (3, before["corrupted"] - 3)
    assert after["scored"] == before["scored"]  # reviewed rows are right, not absent
    frame = ns.read_report(tmp_path / "c.parquet").to_pandas()
    assert set(frame.loc[frame["waived"], "path"]) == set(names)
    assert set(frame.loc[frame["waived"], "verdict"]) == {"corrupted"}

    moved = shutil.copytree(home / "bad", tmp_path / "moved")
    paint(moved / names[0], (1, 2, 3))
    label, file = names[1].split("/")
    other = "0" if label != "0" else "1"
    (moved / names[1]).rename(moved / other / file)
    done = inside("check", moved, *check[2:])
    assert json.loads(done.stdout)["waived"] == 1
    assert f"{names[0]}: its image changed" in done.stderr
    assert f"{other}/{file}: its label changed ({label!r}, now {other!r})" in done.stderr
    (tmp_path / "w.csv").write_text("nonsense\n")
    assert inside(*check).returncode == 3


def test_no_waiver_is_lost_when_several_are_added_at_once(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from noisesieve.report.waivers import Waiver, add_waivers\n"
        "for i in range(20): add_waivers(Path('w.csv'), [Waiver(f'{sys.argv[1]}-{i}', 'a', 'p', 'r', 'd')])"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    several = [
        subprocess.Popen([sys.executable, "-c", script, str(number)], cwd=tmp_path, env=environment)
        for number in range(4)
    ]
    assert [process.wait(timeout=600) for process in several] == [0] * 4
    assert len(read_waivers(tmp_path / "w.csv")) == 80
    assert {entry.name for entry in tmp_path.iterdir()} == {"w.csv", "cache"}  # the lock is in the user's cache


def test_scan_honours_waivers_without_training_again(inside: Run, colours: Path, tmp_path: Path) -> None:
    (colours / "red/0.png").rename(colours / "blue/900.png")
    quick = (
        "--weights",
        "none",
        "--epochs",
        "8",
        "--warmup-epochs",
        "4",
        "--ramp-epochs",
        "2",
        "--sieve-start",
        "6",
        "--no-flip",
    )
    scan = ("scan", colours, *quick, "-o", tmp_path / "run")
    assert inside(*scan, "-q").returncode == 0
    assert "blue/900.png" in ns.read_report(tmp_path / "run").corrupted["id"].to_pylist()
    before = ns.read_report(tmp_path / "run").summary.corrupted
    assert inside("waive", tmp_path / "run", "blue/900.png", "--reason", "art").returncode == 0
    done = inside(*scan)
    assert done.returncode == 0, done.stderr
    assert "finished already" in done.stderr
    assert "waivers have changed" in done.stderr
    assert "1 more is waived" in done.stdout
    report = ns.read_report(tmp_path / "run")
    assert report.summary.corrupted == before - 1
    assert report.summary.waived == 1
    assert "blue/900.png" not in report.corrupted["id"].to_pylist()
    assert "blue/900.png" not in (tmp_path / "run/review.html").read_text()
    assert inside(*scan, "--force", "-q").returncode == 0  # and a fresh training heeds them too
    assert ns.read_report(tmp_path / "run").summary.waived == 1


def test_groups_find_the_annotator_behind_the_errors(inside: Run, home: Path, tmp_path: Path) -> None:
    rows = []
    for path in sorted((home / "bad").rglob("*.png")):
        label = path.parent.name
        truth = _truth(path.name)
        rows.append((path.relative_to(home / "bad").as_posix(), label, "careful" if truth == label else "hasty"))
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "annotator"), *rows])
    options = ("--model", home / "run", "--root", home / "bad", "--group-by", "annotator", "--exit-zero")
    found = json.loads(inside("check", tmp_path / "t.csv", *options, "--json").stdout)["groups"]
    assert [row["value"] for row in found] == ["hasty", "careful"]
    assert found[0]["low"] > found[1]["high"]
    assert "hasty" in inside("check", tmp_path / "t.csv", *options).stdout


def _truth(name: str) -> str:
    return dict(pd.read_csv(SAMPLE / "truth.csv", dtype=str)[["path", "label"]].itertuples(index=False))[
        re.sub(r"^(\d)-", r"\1/", name)
    ]


# What is written for CI


def test_junit_sarif_and_markdown_are_what_their_readers_expect(inside: Run, home: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("junit", "sarif", "markdown")}
    options = [word for name, file in files.items() for word in (f"--{name}", file)]
    done = inside("check", home / "bad", "--model", home / "run", *options, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    suite = next(iter(junitparser.JUnitXml.fromfile(str(files["junit"]))))
    assert (suite.tests, suite.failures) == (len(found["rules"]), 1)
    failed = [case.name for case in suite if case.result]
    assert failed == ["max-corrupted"]
    document = json.loads(files["sarif"].read_text())
    read = sarif_pydantic.Sarif.model_validate(document)  # SARIF 2.1.0 as a library of others has it
    assert read.runs[0].results[0].rule_id == "NS001"
    results = document["runs"][0]["results"]
    assert len(results) == found["corrupted"]
    assert results[0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 1
    assert len({result["partialFingerprints"]["noisesieve/v1"] for result in results}) == len(results)
    assert "**fail**" in files["markdown"].read_text()


@pytest.fixture
def hostile() -> GateResult:
    row = Suspect(
        id="r",
        path="a,b:c%\n::error::x|y.png",
        label="<img src=x>|`x`",
        suggested_label="[/red]*b*",
        corruption_probability=0.9,
        margin=1.0,
        source_line=7,
        sha256="0" * 64,
    )
    batch = BatchCounts(9, 8, 1, 1, 0, 0, 0, {}, {})
    rules = [RuleResult("max-corrupted", "5%", "1 of 8 (12%)\x1b", False)]
    return GateResult("lab|els.csv", "0.1", rules, batch, [row] * 30, "lab,els.csv", is_table=True)


def test_github_commands_are_one_line_each_and_cannot_be_broken_out_of(hostile: GateResult) -> None:
    lines = commands(hostile)
    assert len(lines) == 10
    assert lines[0].startswith("::error title=noisesieve max-corrupted::1 of 8 (12%25)")
    for line in lines[1:]:
        found = re.fullmatch(r"::warning file=([^,:]+),line=(\d+),title=([^,:]+)::([^\n\r]*)", line)
        assert found is not None
        assert found[1] == "lab%2Cels.csv"
        assert found[2] == "7"
        assert "::" not in found[4]


def test_markdown_cells_stay_cells(hostile: GateResult) -> None:
    text = render(hostile)
    for line in text.splitlines():
        if line.startswith("| ") and "P(wrong)" not in line and "---" not in line:
            assert len(re.findall(r"(?<!\\)\|", line)) == 5
    assert "<img" not in text
    assert escape("*_`<") == r"\*\_\`&lt;"
    assert len(summary("é" * 2**20).encode()) < 2**20


def test_github_hears_by_itself(inside: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(home))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("before\n")
    done = inside("check", home / "bad", "--model", home / "run")
    assert done.returncode == 1
    describe_suspect = [line for line in done.stdout.splitlines() if line.startswith("::")]
    assert len(describe_suspect) == 10
    assert describe_suspect[0].startswith("::error title=noisesieve max-corrupted::")
    assert re.match(r"::warning file=bad/\d/[\d-]+\.png,line=1,title=Suspected mislabel::", describe_suspect[1])
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("before\n### noisesieve check: FAILED")
    stopped = re.findall(r"::stop-commands::(\w+)", done.stderr)
    assert f"::{stopped[0]}::" in done.stderr  # in between nothing that a file name says is a command
    quiet = inside("check", home / "bad", "--model", home / "run", "--json")
    json.loads(quiet.stdout)  # still one document
    assert "::warning" in quiet.stderr


# The policy alone


def test_a_count_a_share_and_a_confident_share() -> None:
    batch = BatchCounts(40, 40, 3, 3, 0, 2, 0, {"owl": 1}, {"a": (3, 10), "b": (0, 30)})
    rules = {rule.name: rule for rule in apply_policy(batch, Policy(max_corrupted=parse_limit("2", "x")))}
    assert not rules["max-corrupted"].passed
    for text, confidence, passed in (
        ("5%", None, False),
        ("5%", 0.95, True),
        ("0.01", 0.95, False),
        ("8%", None, True),
    ):
        policy = Policy(max_corrupted=parse_limit(text, "x"), confidence=confidence)
        assert apply_policy(batch, policy)[1].passed is passed
    worst = apply_policy(batch, Policy(max_class_corrupted=parse_limit("20%", "x")))[2]
    assert (worst.passed, worst.measured.startswith("a: 3 of 10")) == (False, True)
    small = BatchCounts(1, 1, 1, 1, 0, 0, 0, {}, {"a": (1, 1)})
    assert apply_policy(small, Policy(confidence=0.95))[1].passed  # one wrong row of one says nothing yet
    assert not apply_policy(small, Policy())[1].passed
    exact = BatchCounts(1000, 1000, 7, 7, 0, 0, 0, {}, {})
    assert apply_policy(exact, Policy(max_corrupted=parse_limit("0.7%", "x")))[1].passed  # at the limit, not above it


@pytest.mark.parametrize(("share", "total"), [(0.05, 4), (0.05, 24), (0.01, 22), (0.1, 300)])
def test_a_batch_at_the_limit_fails_by_chance_no_more_often_than_promised(share: float, total: int) -> None:
    from scipy.stats import binom

    policy = Policy(max_corrupted=parse_limit(f"{100 * share:g}%", "x"), confidence=0.95)
    chance = 0.0
    for hits in range(total + 1):
        assert binomial_tail(hits, total, share) == pytest.approx(binom.sf(hits - 1, total, share), rel=1e-9, abs=1e-15)
        if not apply_policy(BatchCounts(total, total, hits, hits, 0, 0, 0, {}, {}), policy)[1].passed:
            chance += binom.pmf(hits, total, share)
    assert chance <= 0.05


@pytest.mark.parametrize(("hits", "total"), [(0, 10), (1, 10), (5, 50), (50, 50)])
def test_the_lower_bound_lies_below_the_share_and_rises_with_the_rows(hits: int, total: int) -> None:
    bound = lower_bound(hits, total, 0.95)
    assert 0 <= bound <= hits / total
    assert lower_bound(hits * 100, total * 100, 0.95) >= bound


def test_options_come_from_the_projects_own_file(inside: Run, home: Path, tmp_path: Path) -> None:
    Path("pyproject.toml").write_text('[tool.noisesieve.check]\nmax-corrupted = "90%"\nmax-class-corrupted = "100%"\n')
    assert inside("check", home / "bad", "--model", home / "run").returncode == 0
    assert inside("check", home / "bad", "--model", home / "run", "--max-corrupted", "1%").returncode == 1


# The README's own examples, played as CI plays them


def test_the_readmes_workflow_and_hook_run(
    inside: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (REPOSITORY / "README.md").read_text()
    workflow, hook = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.S))
    line = workflow["jobs"]["labels"]["steps"][-1]["run"]
    shutil.copytree(home / "good", Path("new-batch"))
    shutil.copytree(home / "run", Path("model"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "s.md"))
    Path("pyproject.toml").write_text('[tool.noisesieve.check]\nmax_corrupted = "90%"\n')
    words = line.split()[1:]
    done = inside(*words)
    assert done.returncode == 0, done.stderr
    assert "90%" in done.stdout
    assert (tmp_path / "s.md").read_text().startswith("### noisesieve check")
    assert Path("junit.xml").exists()
    (entry,) = hook["repos"][0]["hooks"]
    assert inside(*entry["entry"].split()[1:]).returncode in (0, 1)


def test_a_diff_sorts_suspects_by_their_fate(inside: Run, colours: Path, tmp_path: Path) -> None:
    wrong = {"red/0.png": "green", "red/1.png": "blue", "blue/2.png": "red", "green/3.png": "red", "green/4.png": "red"}
    before = make_run(colours, tmp_path / "a", wrong).path.parent
    (colours / "red/0.png").rename(colours / "green/900.png")  # fixed: another folder, the same content
    (colours / "red/1.png").unlink()  # gone
    after = make_run(
        colours, tmp_path / "b", {"blue/2.png": "red", "blue/5.png": "red", "green/4.png": "red"}
    ).path.parent
    done = inside("diff", before, after, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    validate(found, "diff")
    counts = {kind: count for kind, count in found["counts"].items() if count}
    assert counts == {"new": 1, "fixed": 1, "cleared": 1, "gone": 1, "persistent": 2}
    assert found["suspects"]["fixed"][0] == {
        "id": "green/900.png",
        "before": "red",
        "after": "green",
        "suggested_label": None,
        "corruption_probability": found["suspects"]["fixed"][0]["corruption_probability"],
    }
    assert found["suspects"]["new"][0]["id"] == "blue/5.png"
    red = next(row for row in found["classes"] if row["label"] == "red")
    assert (red["before"], red["after"]) == ({"corrupted": 2, "of": 40}, {"corrupted": 0, "of": 38})
    shown = inside("diff", before, after).stdout
    assert "green/900.png: red → green" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert inside("diff", before, tmp_path).returncode == 3


def test_a_diff_of_embedded_tables_goes_by_content(inside: Run, colours: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted(colours.rglob("*.png"))
    table = pa.table({"image": [file.read_bytes() for file in files], "label": [file.parent.name for file in files]})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.slice(1), tmp_path / "b.parquet")
    before = make_run(tmp_path / "a.parquet", tmp_path / "a", {"0": "red", "5": "red"}).path.parent
    after = make_run(tmp_path / "b.parquet", tmp_path / "b", {"4": "red"}).path.parent
    found = json.loads(inside("diff", before, after, "--json").stdout)
    assert {kind: count for kind, count in found["counts"].items() if count} == {"gone": 1, "persistent": 1}


def test_a_waiver_refresh_that_fails_leaves_the_run_whole(colours: Path, tmp_path: Path) -> None:
    run = make_run(colours, tmp_path / "run", {"red/0.png": "green"})
    folder = RunFolder(run.path.parent)

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="space"):
        folder.replace({"report.parquet": lambda path: path.write_bytes(b"new"), "summary.json": full})
    assert ns.read_report(tmp_path / "run").table.equals(run.table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Path, "replace", lambda self, target: full(self) if target.name == "run.json" else os.replace(self, target)
        )
        with pytest.raises(OutputError, match="No space"):
            folder.replace({MAIN: lambda path: shutil.copy(run.path, path)})
    assert ns.read_report(tmp_path / "run").table.equals(run.table)
    assert not list(run.path.parent.glob(".*.publish"))
