"""What is said is true: what is known, what is estimated, what is chosen, and what an option does."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import noisesieve as ns
from noisesieve.cli.explain import sentence
from noisesieve.cli.scan_summary import print_summary
from noisesieve.commands._open_run import settings_of_run
from noisesieve.commands.explain import Explanation
from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.files import write_json
from noisesieve.core.options import build_settings
from noisesieve.learn.describe import introduce
from noisesieve.learn.plan import plan
from noisesieve.learn.training_settings import TrainingOptions
from noisesieve.measure.samples import draw_probe, strata
from noisesieve.report.headline import flagged_sentence, nothing_flagged_sentence
from noisesieve.report.run import RunFolder
from noisesieve.sources.containers import read_index
from noisesieve.sources.source_settings import SourceSettings
from tests.conftest import QUICK, Run, paint
from tests.hostile.attack import few_colours
from tests.runs import make_run


def write_vectors(folder: Path, rows: int = 300, wrong: int = 30, **columns: Any) -> Path:
    """A table of three classes with embeddings that tell them apart, and the first labels wrong."""
    rng = np.random.default_rng(0)
    right = np.arange(rows) % 3
    given = np.where(np.arange(rows) < wrong, (right + 1) % 3, right)
    np.save(folder / "e.npy", np.eye(3)[right] * 4 + rng.normal(0, 1, (rows, 3)))
    names = ["label", *columns]
    cells = [[f"c{code}" for code in given], *columns.values()]
    lines = [",".join(names), *(",".join(map(str, row)) for row in zip(*cells, strict=True))]
    table = folder / "t.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


# 1. Known to be right


def test_trusted_rows_cannot_be_wrong_anywhere(inside: Run, tmp_path: Path) -> None:
    trusted = ["yes" if i < 15 or i >= 200 else "no" for i in range(300)]  # half of the wrong ones, and many right ones
    table = write_vectors(tmp_path, known=trusted)
    words = ("scan", table, "--embeddings", tmp_path / "e.npy")
    ended = inside(*words, "--trusted-column", "known", "-o", tmp_path / "run")
    assert ended.returncode == 0, ended.stderr
    report = ns.read_report(tmp_path / "run")
    chance = report.table["corruption_probability"].to_numpy()
    mask = np.array(trusted) == "yes"
    assert (chance[mask] == 0).all()
    assert chance[~mask].max() > 0.5
    rate = report.summary.estimated_noise_rate
    assert rate.value == pytest.approx(chance.mean(), abs=1e-6)
    assert rate.low <= rate.value <= rate.high <= (~mask).mean()
    assert not mask[np.concatenate(strata(report))].any()
    assert not mask[draw_probe(report, 40, seed=1)].any()
    assert report.summary.budget[-1].first <= (~mask).sum()
    assert sum(row.expected_wrong for row in report.summary.classes) <= chance[~mask].sum() + 1e-6
    assert inside(*words, "-o", tmp_path / "plain").returncode == 0
    without = ns.read_report(tmp_path / "plain").table["corruption_probability"].to_numpy()
    assert without[mask].max() > 0.5  # it is the column of trusted rows that makes the difference


def test_the_column_says_what_is_true_of_it() -> None:
    from noisesieve.report.schema import DESCRIPTIONS

    assert "among rows nobody decided; 0 for trusted ones" in DESCRIPTIONS["corruption_probability"]


# 2. What is known and no more


def test_few_labels_get_no_probability(inside: Run, tmp_path: Path) -> None:
    data = few_colours(tmp_path / "data", each=6)
    make_run(data, tmp_path / "run", {"red/0.png": "green", "blue/1.png": "red"})
    report = ns.read_report(tmp_path / "run")
    assert report.summary.estimated_noise_rate.is_vague
    assert inside("review", tmp_path / "run").returncode == 0
    page = (tmp_path / "run/review.html").read_text()
    assert '"chance":null' in page
    assert '"chance":0' not in page
    assert "expected wrong" not in page
    found = Explanation.of_row(report, report.table["id"].to_pylist().index("red/0.png"))
    assert found.scores is not None
    assert "too few labels" in sentence(found, found.scores)
    assert "wrong with probability" not in sentence(found, found.scores)


def test_a_scan_of_few_labels_advises_nothing_that_it_cannot_do(inside: Run, tmp_path: Path) -> None:
    data = few_colours(tmp_path / "data", each=6)
    paint(data / "red/wrong.png", (40, 200, 40), seed=9)
    ended = inside("scan", data, *QUICK, "--image-size", "16", "--no-cache")
    assert ended.returncode == 0, ended.stderr
    assert "too few to tell" in ended.stdout
    assert "P(wrong)" not in ended.stdout
    assert "expected" not in ended.stdout
    assert "--plant" not in ended.stdout


def test_a_run_without_flagged_rows_says_what_that_means(inside: Run, tmp_path: Path) -> None:
    data = few_colours(tmp_path / "data", each=20)
    summary = make_run(data, tmp_path / "run").summary
    assert summary.flagged.rows == 0
    assert "proves no label right" in nothing_flagged_sentence(summary)
    shown = io.StringIO()
    print_summary(Console(file=shown, width=80), summary, tmp_path / "run")
    assert "proves no label right" in " ".join(shown.getvalue().split())
    assert f"noisesieve review {tmp_path / 'run'} --probe 30" in shown.getvalue().replace("\n", "")
    assert inside("review", tmp_path / "run").returncode == 0
    assert "proves no label right" in (tmp_path / "run/review.html").read_text()


def test_the_headline_calls_a_choice_a_choice(inside: Run, tmp_path: Path) -> None:
    table = write_vectors(tmp_path, rows=3000, wrong=300)
    chosen = inside("scan", table, "--embeddings", tmp_path / "e.npy", "-o", tmp_path / "chosen")
    summary = ns.read_report(tmp_path / "chosen").summary
    assert summary.is_count_chosen
    assert "as many as the estimated noise rate says" in " ".join(chosen.stdout.split())
    assert "expected to be wrong" not in flagged_sentence(summary)
    fixed = inside("scan", table, "--embeddings", tmp_path / "e.npy", "--sieve-eps", "0.1", "-o", tmp_path / "fixed")
    assert fixed.returncode == 0
    assert not ns.read_report(tmp_path / "fixed").summary.is_count_chosen
    assert "of them are expected to be wrong" in " ".join(fixed.stdout.split())


# 3. One reader of decisions


@pytest.mark.parametrize("command", ["evaluate", "waive", "retrain", "apply"])
@pytest.mark.parametrize("spelled", ["absolute", "relative"])
def test_every_command_finds_the_same_rows(inside: Run, tmp_path: Path, command: str, spelled: str) -> None:
    from noisesieve.commands._open_run import read_outcomes

    data = few_colours(tmp_path / "data")
    report = make_run(data, tmp_path / "run", {"red/0.png": "green", "red/1.png": "green"})
    first = str(data / "red/0.png") if spelled == "absolute" else "red/0.png"
    (tmp_path / "a.csv").write_text(f"path,decision,label\n{first},keep,red\n")
    (tmp_path / "b.csv").write_text("path,decision,label\nred/1.png,accept,green\n")
    found, _ = read_outcomes(report, [tmp_path / "a.csv", tmp_path / "b.csv"], new_classes=False)
    assert {report.table["id"][row].as_py(): outcome.label for row, outcome in found.items()} == {
        "red/0.png": "red",
        "red/1.png": "green",
    }
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    for files in ((f"{a},{b}",), (a, b)):
        if command == "apply":
            words: tuple[object, ...] = ("apply", tmp_path / "run", a, b, "-o", tmp_path / "new.csv", "--force")
        elif command == "retrain":
            words = ("retrain", tmp_path / "run", "--decisions", *files, "-o", tmp_path / "re")
        else:
            words = (command, tmp_path / "run", "--decisions", *files)
        ended = inside(*words, "--json")
        if command == "retrain":  # the made run has no model: it is refused for that, not for its decisions
            assert "model" in ended.stderr
            continue
        assert ended.returncode == 0, ended.stderr
        document = json.loads(ended.stdout)
        counted = {"evaluate": lambda d: d["judgement"]["decided"] == 2, "waive": lambda d: len(d["waived"]) == 1}
        assert counted.get(command, lambda d: d["decided"] == 2)(document)


def test_python_takes_decisions_as_a_list_a_path_or_a_text(tmp_path: Path) -> None:
    for given in (["a.csv", "b.csv"], ("a.csv", "b.csv"), "a.csv,b.csv", [Path("a.csv"), Path("b.csv")]):
        settings = build_settings(ScanSettings, {"path": tmp_path, "decisions": given})
        assert settings.decisions == (Path("a.csv"), Path("b.csv"))


# 4. Another machine, another cache, another file


def made_on_a_gpu(run: Path) -> None:
    """Change a run as if it had been made on a GPU."""
    document = json.loads((run / "summary.json").read_text())
    document["training"]["device"] = "cuda:0"
    known = RunFolder(run).read()
    assert known is not None
    write_json(run / "summary.json", document)
    from dataclasses import replace

    from noisesieve.core.files import sha256_of

    files = {**known.files, "summary.json": sha256_of(run / "summary.json")}
    changed = replace(known, identity={**known.identity, "device": "cuda"}, files=files)
    write_json(run / "run.json", changed.to_document())


@pytest.mark.slow
def test_a_run_of_a_gpu_is_used_on_a_laptop(inside: Run, tmp_path: Path) -> None:
    data = few_colours(tmp_path / "data")
    cache = ("--cache-dir", tmp_path / "own")
    made = inside("scan", data, "-o", tmp_path / "run", "--epochs", "4", *cache)
    assert made.returncode == 0, made.stderr
    made_on_a_gpu(tmp_path / "run")
    for words in (
        ("explain", tmp_path / "run", "0"),
        ("review", tmp_path / "run"),
        ("check", data, "--model", tmp_path / "run"),
        ("export", tmp_path / "run", "--to", "csv", "--only", "all"),
    ):
        ended = inside(*words)
        assert ended.returncode in (0, 1), ended.stderr
    planted = inside("evaluate", tmp_path / "run", "--plant", "20%", "--json")
    assert planted.returncode == 0, planted.stderr
    assert "The features were in the cache." in planted.stderr  # those of the run's own cache folder


def test_planting_notices_other_embeddings(inside: Run, tmp_path: Path) -> None:
    table = write_vectors(tmp_path)
    words = ("scan", table, "--embeddings", tmp_path / "e.npy", "-o", tmp_path / "run")
    assert inside(*words).returncode == 0
    assert inside("evaluate", tmp_path / "run", "--plant", "10%").returncode == 0
    np.save(tmp_path / "e.npy", np.load(tmp_path / "e.npy") + 1)
    ended = inside("evaluate", tmp_path / "run", "--plant", "10%", "--seed", "1")
    assert ended.returncode == 5
    assert "e.npy: changed since the run" in ended.stderr


def test_planted_precision_can_disagree_with_recall() -> None:
    from types import SimpleNamespace

    from noisesieve.measure.planting import measure_planted

    def verdicts(*rows: str) -> Any:
        words = {"x": "corrupted", ".": "clean"}
        return SimpleNamespace(verdicts=np.array([words[c] for c in "".join(rows)], dtype=object), path=Path("r/x"))

    planted = np.array([c == "p" for c in "pppp......"])
    found = measure_planted(verdicts("......x..."), verdicts("xxxx..x..."), planted)
    assert (found.recall, found.precision, found.newly_flagged) == (1.0, 1.0, 4)
    found = measure_planted(verdicts("......x..."), verdicts("xx..xxx..."), planted)
    assert (found.recall, found.precision, found.newly_flagged) == (0.5, 0.5, 4)
    found = measure_planted(verdicts("......x..."), verdicts("xxxxxxxxxx"), planted)
    assert (found.recall, found.precision) == (1.0, pytest.approx(4 / 9))


# 5. What an option does beside what it names


@pytest.mark.parametrize(
    "options", [{"mixup": 0.2}, {"balanced": True}, {"settle_epochs": 3}, {"epoch_steps": 9}, {"score_pass": "train"}]
)
def test_an_option_that_switches_the_path_says_so(options: dict[str, Any]) -> None:
    flag = "--" + next(iter(options)).replace("_", "-")
    sides = np.full(300, 64)
    wanted = TrainingOptions(**options)
    recipe = plan(wanted, rows=300, classes=3, longest_sides=sides, device="cpu")
    assert f"{flag}: for a trained network only, so frozen features are not used" in introduce(
        recipe, wanted, compared_heads=None
    )
    asked = TrainingOptions(weights="none", **options)
    recipe = plan(asked, rows=300, classes=3, longest_sides=sides, device="cpu")
    assert "frozen features are not used" not in introduce(recipe, asked, compared_heads=None)
    frozen = TrainingOptions(weights="timm/resnet18", **options)
    with pytest.raises(UsageError, match=flag):
        plan(frozen, rows=300, classes=3, longest_sides=sides, device="cpu")


def test_the_papers_floor_says_that_the_snapshot_is_left_out() -> None:
    options = TrainingOptions(weights="none", sieve_eps=1e-8)
    recipe = plan(options, rows=300, classes=3, longest_sides=np.full(300, 32), device="cpu")
    assert recipe.settle_epochs == 0
    assert "no cross-entropy snapshot" in introduce(recipe, options, compared_heads=None)


# 6. Tables as people have them


def test_a_dry_run_without_a_readable_image_fails_and_says_why(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label\nnowhere/a.png,x\nnowhere/b.png,y\n")
    ended = inside("scan", tmp_path / "t.csv", "--dry-run")
    assert ended.returncode == 3
    assert "nowhere/a.png: missing file" in ended.stderr


def test_labels_that_join_classes_are_warned_about(inside: Run, tmp_path: Path) -> None:
    few_colours(tmp_path, each=2)
    rows = ["red/0.png,dress|red", "red/1.png,dress|blue", "blue/0.png,shirt", "blue/1.png,shirt"]
    (tmp_path / "t.csv").write_text("path,label\n" + "\n".join(rows) + "\n")
    ended = inside("scan", tmp_path / "t.csv", "--dry-run")
    assert ended.returncode == 0
    assert "2 labels look like several classes in one cell, such as 'dress|blue'" in ended.stderr


@pytest.mark.parametrize("path", ["filename", "file_name", "image", "image_path"])
@pytest.mark.parametrize("label", ["class", "category", "target"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_usual_names_of_columns_are_recognised(tmp_path: Path, path: str, label: str, kind: str) -> None:
    import pyarrow as pa

    rows = {path: ["a.png", "b.png"], label: ["x", "y"], "note": ["1", "2"]}
    file = tmp_path / f"t.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table(rows), file)
    elif kind == "jsonl":
        lines = (json.dumps(dict(zip(rows, cells, strict=True))) for cells in zip(*rows.values(), strict=True))
        file.write_text("\n".join(lines))
    else:
        lines = (",".join(cells) for cells in zip(*rows.values(), strict=True))
        file.write_text(",".join(rows) + "\n" + "\n".join(lines) + "\n")
    index = read_index(SourceSettings(file))
    assert (index.paths, index.labels, index.label_column) == (["a.png", "b.png"], ["x", "y"], label)
    assert index.carried is not None
    assert index.carried.column_names == ["note"]
    assert len(index.notes) == 2


def test_a_recognised_label_column_is_rewritten_by_apply(inside: Run, tmp_path: Path) -> None:
    few_colours(tmp_path, each=6)
    rows = [f"{name}/{i}.png,{name}" for name in ("red", "green", "blue") for i in range(6)]
    (tmp_path / "t.csv").write_text("filename,class\n" + "\n".join(rows) + "\n")
    make_run(tmp_path / "t.csv", tmp_path / "run", {"red/0.png": "green"})
    ended = inside("apply", tmp_path / "run", "--accept-above", "0", "-o", tmp_path / "new.csv")
    assert ended.returncode == 0, ended.stderr
    assert "red/0.png,green" in (tmp_path / "new.csv").read_text()


def test_every_missing_column_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("file,tag\na.png,x\n")
    with pytest.raises(InputError, match="no column 'label' and no column 'path' and no column 'key'") as caught:
        read_index(SourceSettings(tmp_path / "t.csv", id_column="key"))
    assert "--label-column and --path-column and --id-column" in str(caught.value)
    assert "'file', 'tag'" in str(caught.value)
    (tmp_path / "t.csv").write_text("path,class,category\na.png,x,y\n")  # which of the two?
    with pytest.raises(InputError, match="no column 'label'"):
        read_index(SourceSettings(tmp_path / "t.csv"))


def test_a_second_dataset_and_a_url_are_answered(inside: Run, tmp_path: Path) -> None:
    two = inside("scan", tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert two.returncode == 2
    assert "b.parquet is a second one" in two.stderr
    url = inside("scan", "https://example.org/labels.csv")
    assert url.returncode == 3
    assert "https://example.org/labels.csv: an address" in url.stderr


def test_settings_of_a_run_name_its_own_cache_and_no_device(inside: Run, tmp_path: Path) -> None:
    data = few_colours(tmp_path / "data")
    words = ("scan", data, *QUICK, "--image-size", "16", "-o", tmp_path / "run", "--cache-dir", tmp_path / "own")
    assert inside(*words).returncode == 0
    settings = settings_of_run(ns.read_report(tmp_path / "run"))
    assert settings.device == "auto"
    assert settings.pixels.cache_dir == (tmp_path / "own").resolve()
