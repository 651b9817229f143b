"""`evaluate`: figures that can be checked by hand, on reports of known content; `--plant` on a real run."""

from __future__ import annotations

import csv
import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import noisesieve as ns
from noisesieve.commands._open_run import settings_of_run
from noisesieve.measure.metrics import calibration
from noisesieve.measure.planting import draw_flips
from noisesieve.measure.samples import draw_probe
from noisesieve.sieve.recalibrate import apply_shift, recalibrate, undo_shift
from noisesieve.sources.source_settings import MovedData
from tests.conftest import QUICK_OPTIONS, SAMPLE, Run, few_digits, validate
from tests.runs import built_once, scan_few_digits


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A part of the sample data and a quick run on it."""
    home = built_once(tmp_path_factory, "few-digits", scan_few_digits)
    return home / "digits", home / "run"


def test_every_figure_follows_from_the_report_and_the_truth(inside: Run, digits: tuple[Path, Path]) -> None:
    done = inside("evaluate", digits[1], "--truth", SAMPLE / "truth.csv", "--json")
    assert done.returncode == 0, done.stderr
    assert "entries match no row" in done.stderr  # the truth of all 1,797, the run of 600
    found = json.loads(done.stdout)
    validate(found, "evaluate")
    frame = (
        ns.read_report(digits[1])
        .to_pandas()
        .merge(__import__("pandas").read_csv(SAMPLE / "truth.csv", dtype=str), on="path", suffixes=("", "_true"))
    )
    wrong, flagged = frame["label"] != frame["label_true"], frame["verdict"] == "corrupted"
    assert found["wrong"] == wrong.sum()
    assert found["corrupted"]["precision"] == pytest.approx((wrong & flagged).sum() / flagged.sum())
    assert found["clean"]["recall"] == pytest.approx((~wrong & ~flagged).sum() / (~wrong).sum())
    assert found["paper"]["corrupted"]["flagged"] == (frame["paper_verdict"] == "corrupted").sum()
    assert found["noise_rate"]["error"] == pytest.approx(
        frame["corruption_probability"].mean() - wrong.mean(), abs=1e-6
    )
    first = frame.sort_values("rank").head(10)
    assert found["precision_at"]["10"] == pytest.approx((first["label"] != first["label_true"]).mean())
    assert sum(row["wanted"] for row in found["classes"]) == found["wrong"]
    assert sum(row["flagged"] for row in found["classes"]) == found["corrupted"]["flagged"]
    assert 0 <= found["calibration"]["ece"] <= 1
    assert found["suggestions"]["right"] <= found["suggestions"]["made"]


def test_the_table_fits_and_the_image_is_drawn(inside: Run, digits: tuple[Path, Path]) -> None:
    done = inside("evaluate", digits[1], "--truth", SAMPLE / "truth.csv")
    assert done.returncode == 0, done.stderr
    for word in ("precision", "recall", "average precision", "AUC", "calibration error", "noise rate", "given label"):
        assert word in done.stdout
    image = digits[1] / "evaluation.svg"
    assert max(len(line) for line in done.stdout.splitlines() if str(image) not in line) <= 80
    root = ET.fromstring(image.read_text())
    assert root.tag.endswith("svg")
    assert len(root.findall(".//{http://www.w3.org/2000/svg}rect")) > 20  # both histograms
    assert ns.read_report(digits[1])  # the run is untouched


def test_a_truth_column_of_the_table_is_found_by_itself(inside: Run, colours: Path) -> None:
    assert inside("inject", colours, "--noise", "symmetric", "--rate", "0.2", "-o", "n.csv").returncode == 0
    quick = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK_OPTIONS.items() if name != "flip"]
    done = inside("scan", "n.csv", "--root", colours, *quick, "--no-flip", "-o", "run")
    assert done.returncode == 0, done.stderr
    found = json.loads(inside("evaluate", "run", "--json").stdout)
    assert found["measured"] == 120
    assert found["wrong"] > 5
    named = json.loads(inside("evaluate", "run", "--truth-column", "true_label", "--json").stdout)
    assert named == found
    lost = inside("evaluate", "run", "--truth-column", "nothing")
    assert lost.returncode == 2
    assert "true_label" in lost.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("path,label\nnowhere.png,3\n", "none of its 1 entries"),
        ("path,label\n0/0000.png,3\n0/0000.png,4\n", ":3:"),
        ("file,label\n0/0000.png,3\n", "no column id or path"),
        ("path,class\n0/0000.png,3\n", "no column true_label or label"),
        ("path,label\n0/0000.png,\n", "none of its 0 entries"),
        ("", "no column id or path"),
        ("path,label,label\n0/0000.png,3,4\n", "twice"),
    ],
)
def test_a_truth_that_does_not_fit_is_named(
    inside: Run, digits: tuple[Path, Path], tmp_path: Path, content: str, says: str
) -> None:
    (tmp_path / "truth.csv").write_text(content)
    done = inside("evaluate", digits[1], "--truth", tmp_path / "truth.csv")
    assert done.returncode == 3, done.stderr
    assert says in done.stderr


def test_without_any_truth_the_next_step_is_said(inside: Run, digits: tuple[Path, Path]) -> None:
    done = inside("evaluate", digits[1])
    assert done.returncode == 2
    assert "--truth" in done.stderr
    both = inside("evaluate", digits[1], "--plant", "5%", "--truth", "x.csv")
    assert both.returncode == 2
    assert inside("evaluate", digits[1], "--plant", "0").returncode == 2


def test_flips_are_planted_over_all_rows(inside: Run, digits: tuple[Path, Path]) -> None:
    done = inside("evaluate", digits[1], "--plant", "5%", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    validate(found, "planted")
    report = ns.read_report(digits[1])
    readable = report.verdicts != "unreadable"
    assert found["planted"] == round(0.05 * readable.sum())
    again = ns.read_report(found["run"])
    chosen, labels = draw_flips(report, readable, share=0.05, seed=0)
    before, after = report.table["label"].to_pylist(), again.table["label"].to_pylist()
    changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert changed == chosen.tolist()
    assert [after[i] for i in changed] == labels
    suggested = report.table["suggested_label"].to_pylist()
    assert all(suggested[row] != label for row, label in zip(changed, labels, strict=True))
    assert again.facts.settings["training"] == report.facts.settings["training"]
    low, high = found["recall_interval"]
    assert low <= found["recall"] <= high
    new = (again.verdicts == "corrupted") & (report.verdicts != "corrupted")
    assert found["newly_flagged"] == new.sum()
    assert found["precision"] == pytest.approx(new[chosen].sum() / new.sum())
    low, high = found["precision_interval"]
    assert low <= found["precision"] <= high
    shown = inside("evaluate", digits[1], "--plant", "5%")  # the second time it is there already
    assert "planted flips are flagged: recall" in shown.stdout
    assert "--probe 30" in shown.stdout
    assert "finished already" in shown.stderr


def test_planting_finds_a_dataset_that_moved_and_refuses_one_that_changed(
    digits: tuple[Path, Path], inside: Run, tmp_path: Path
) -> None:
    report = ns.read_report(digits[1])
    assert settings_of_run(report).source.path == digits[0].resolve()
    moved = few_digits(tmp_path / "moved", each=60)
    assert settings_of_run(report, MovedData(moved)).source.path == moved
    assert settings_of_run(report, MovedData(moved)).device == "auto"  # not the run's: it may be made on a GPU
    found = inside("evaluate", digits[1], "--plant", "5%", "--data", moved, "--json")
    assert found.returncode == 0, found.stderr
    other = few_digits(tmp_path / "other", each=10)
    done = inside("evaluate", digits[1], "--plant", "10%", "--data", other)
    assert done.returncode == 5
    assert "changed since" in done.stderr


def test_truth_is_read_as_labels_are_whatever_the_column_is_made_of() -> None:
    from noisesieve.core.errors import InputError
    from noisesieve.core.progress import Session
    from noisesieve.measure.truth import LabelledRows, find_truth, texts
    from noisesieve.measure.truth_settings import TruthSettings

    assert texts(pa.chunked_array([pa.array([3.0, None, 4.0])]), "x") == ["3", None, "4"]
    assert texts(pa.chunked_array([pa.array(["a", "", "b"]).dictionary_encode()]), "x") == ["a", None, "b"]
    assert texts(pa.chunked_array([pa.array([1, 2])]), "x") == ["1", "2"]
    for odd in (pa.array([0.5]), pa.array([[1]])):
        with pytest.raises(InputError, match="contains no labels"):
            texts(pa.chunked_array([odd]), "x")
    rows = LabelledRows(["a", "b"], [None, None], ["y", "x"], pa.table({"gold": ["x", "y"]}))
    assert find_truth(rows, TruthSettings(truth_column="gold"), Session()) == ["x", "y"]


def test_a_users_own_column_named_label_is_the_truth_and_not_the_given_label(inside: Run, colours: Path) -> None:
    files = sorted(colours.rglob("*.png"))
    lines = [
        f"{f.parent.name}/{f.name},{f.parent.name if i % 9 else 'red'},{f.parent.name}" for i, f in enumerate(files)
    ]
    (colours / "in.csv").write_text("path,given,label\n" + "\n".join(lines) + "\n")
    quick = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK_OPTIONS.items() if name != "flip"]
    done = inside("scan", colours / "in.csv", "--label-column", "given", *quick, "--no-flip", "-o", "run", "-q")
    assert done.returncode == 0, done.stderr
    found = json.loads(inside("evaluate", "run", "--truth-column", "label", "--json").stdout)
    assert found["wrong"] == sum(line.split(",")[1] != line.split(",")[2] for line in lines) > 5


def test_a_truth_of_other_classes_is_refused_and_a_few_strangers_are_named(
    inside: Run, digits: tuple[Path, Path], tmp_path: Path
) -> None:
    import pandas as pd

    truth = pd.read_csv(SAMPLE / "truth.csv", dtype=str)
    truth.assign(label="digit " + truth["label"]).to_csv(tmp_path / "names.csv", index=False)
    done = inside("evaluate", digits[1], "--truth", tmp_path / "names.csv")
    assert done.returncode == 3
    assert "not classes of this dataset" in done.stderr
    truth.assign(label=truth["label"] + ".0", id=range(len(truth))).to_csv(tmp_path / "gaps.csv", index=False)
    plain = inside("evaluate", digits[1], "--truth", SAMPLE / "truth.csv", "-q")
    assert inside("evaluate", digits[1], "--truth", tmp_path / "gaps.csv", "-q").stdout == plain.stdout
    assert len(plain.stdout.splitlines()) == 1
    truth.loc[0, "label"] = "eleven"
    lines = [json.dumps({"path": f"./{row.path}", "label": row.label}) for row in truth.itertuples()]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    done = inside("evaluate", digits[1], "--truth", tmp_path / "t.jsonl", "-q")
    assert done.returncode == 0, done.stderr
    assert "'eleven'" in done.stderr


def decide(run: Path, rows: list[int], right: dict[str, str], file: Path, *, sampled: bool) -> Path:
    """Write decisions.csv with the right labels of some rows, as the page would."""
    table = ns.read_report(run).table
    ids, given = table["id"].to_pylist(), table["label"].to_pylist()
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["id", "given", "decision", "label", "run", "sample"])
        for row in rows:
            word = "keep" if right[ids[row]] == given[row] else "relabel"
            writer.writerow([ids[row], given[row], word, right[ids[row]], "x", "yes" if sampled else ""])
    return file


def test_decisions_on_a_random_sample_measure_and_correct_a_run(
    inside: Run, digits: tuple[Path, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(digits[1], run)
    right = dict(line.split(",") for line in (SAMPLE / "truth.csv").read_text().splitlines()[1:])
    report = ns.read_report(run)
    rows = draw_probe(report, 60, seed=0)
    assert len(set(rows.tolist())) == 60
    file = decide(run, rows.tolist(), right, tmp_path / "d.csv", sampled=True)
    done = inside("evaluate", run, "--decisions", file, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    validate(found, "decided")
    seen = found["judgement"]
    assert (seen["decided"], seen["sampled"], seen["from_sample"]) == (60, 60, True)
    ids, given = report.table["id"].to_pylist(), report.table["label"].to_pylist()
    wrong = np.array([right[name] != label for name, label in zip(ids, given, strict=True)])
    flagged = report.verdicts == "corrupted"
    for name, true in (
        ("precision", wrong[flagged].mean()),
        ("recall", flagged[wrong].mean()),
        ("noise_rate", wrong.mean()),
    ):
        assert seen[name]["low"] - 0.02 <= true <= seen[name]["high"] + 0.02, name
    before = report.table["corruption_probability"].to_pylist()
    done = inside("evaluate", run, "--decisions", file, "--update")
    assert done.returncode == 0, done.stderr
    assert "corrected by these decisions" in done.stdout
    after = ns.read_report(run)
    assert after.summary.recalibration is not None
    assert after.verdicts.tolist() == report.verdicts.tolist()
    again = inside("evaluate", run, "--decisions", file, "--update", "--json")  # a second time changes nothing
    assert json.loads(again.stdout)["recalibration"] == found["recalibration"]
    assert ns.read_report(run).table["corruption_probability"].to_pylist() == pytest.approx(
        after.table["corruption_probability"].to_pylist(), abs=1e-3
    )
    assert after.table["corruption_probability"].to_pylist() != before


def test_decisions_that_are_no_sample_say_so(inside: Run, digits: tuple[Path, Path], tmp_path: Path) -> None:
    right = dict(line.split(",") for line in (SAMPLE / "truth.csv").read_text().splitlines()[1:])
    first = ns.read_report(digits[1]).corrupted["row"].to_pylist()[:5]
    file = decide(digits[1], first, right, tmp_path / "d.csv", sampled=False)
    done = inside("evaluate", digits[1], "--decisions", file)
    assert done.returncode == 0, done.stderr
    assert "not a random sample" in done.stdout
    assert "Recall needs a random sample" in done.stdout
    for words in (("--update",), ("--decisions", file, "--truth", "t.csv"), ("--decisions", tmp_path / "none.csv")):
        assert inside("evaluate", digits[1], *words).returncode in (2, 3)


def test_a_page_with_a_random_sample_has_it_first(inside: Run, digits: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    done = inside("review", digits[1], "--probe", "12", "-o", page)
    assert done.returncode == 0, done.stderr
    assert "random sample of 12 rows" in done.stdout
    data = json.loads(page.read_text().partition('id="data">')[2].partition("</script>")[0])
    marks = [suspect["sample"] for suspect in data["suspects"]]
    assert marks[:12] == [True] * 12
    assert not any(marks[12:])
    names = [suspect["id"] for suspect in data["suspects"]]
    assert len(names) == len(set(names))


def test_recalibration_halves_the_error_of_probabilities_that_are_too_high() -> None:
    rng = np.random.default_rng(0)
    said = rng.uniform(0.3, 0.99, 4000)
    odds = np.log(said / (1 - said)) - 2
    wrong = rng.random(4000) < 1 / (1 + np.exp(-odds))
    errors = []
    for seed in range(10):
        chosen = np.random.default_rng(seed).choice(4000, 30, replace=False)
        found = recalibrate(said[chosen], wrong[chosen])
        errors.append(calibration(apply_shift(said, found), wrong).ece)
        assert np.allclose(undo_shift(apply_shift(said, found), found), said, atol=1e-6)
    assert np.median(errors) <= calibration(said, wrong).ece / 2
    assert recalibrate(said[:0], wrong[:0]).shift == pytest.approx(0.0, abs=1e-9)


def test_a_scan_learns_from_decisions_and_does_not_ask_again(
    inside: Run, digits: tuple[Path, Path], tmp_path: Path
) -> None:
    right = dict(line.split(",") for line in (SAMPLE / "truth.csv").read_text().splitlines()[1:])
    report = ns.read_report(digits[1])
    rows = [*report.corrupted["row"].to_pylist()[:20], *draw_probe(report, 12, seed=1).tolist()]
    file = decide(digits[1], list(dict.fromkeys(rows)), right, tmp_path / "d.csv", sampled=False)
    quick = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK_OPTIONS.items() if name != "flip"]
    command = ("scan", digits[0], "--weights", "none", *quick, "--no-flip", "--decisions", file, "-q")
    done = inside(*command, "-o", "again")
    assert done.returncode == 0, done.stderr
    again = ns.read_report("again")
    assert again.table["label"].to_pylist() == report.table["label"].to_pylist()  # the given labels stay
    decided = again.table["decided_label"].to_pylist()
    assert {row for row, label in enumerate(decided) if label is not None} == set(rows)
    assert not (again.verdicts[rows] == "corrupted").any()
    chances = again.table["corruption_probability"].to_pylist()
    given = again.table["label"].to_pylist()
    assert all(chances[row] == float(decided[row] != given[row]) for row in rows)
    assert again.summary.recalibration is not None
    assert "finished already" in inside(*command[:-1], "-o", "again").stderr
    moved = tmp_path / "none.csv"
    moved.write_text("id,label\nnobody.png,3\n")
    other = inside(*command[:-3], "--decisions", moved, "-o", "other")
    assert other.returncode == 0, other.stderr
    assert "passed over" in other.stderr
    first = inside(*command[:-3], "--decisions", file)  # a folder beside the first run
    assert first.returncode == 0, first.stderr
    assert Path("noisesieve-runs/digits-2/report.parquet").exists()


def test_two_reviewers_who_disagree_are_named(inside: Run, digits: tuple[Path, Path], tmp_path: Path) -> None:
    table = ns.read_report(digits[1]).table
    name, given = table["id"][0].as_py(), table["label"][0].as_py()
    for who, label in (("ann", "1"), ("bob", "2")):
        (tmp_path / f"{who}.csv").write_text(f"id,label,given,reviewer\n{name},{label},{given},{who}\n")
    files = f"{tmp_path / 'ann.csv'},{tmp_path / 'bob.csv'}"
    done = inside("scan", digits[0], "--decisions", files, "-o", "x")
    assert done.returncode == 3
    assert "by ann" in done.stderr
    assert "by bob" in done.stderr
    (tmp_path / "new.csv").write_text(f"id,label\n{name},eleven\n")
    done = inside("scan", digits[0], "--decisions", tmp_path / "new.csv", "-o", "x")
    assert done.returncode == 3
    assert "not a class" in done.stderr
