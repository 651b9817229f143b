"""`noisesieve scan` as a user sees it: what is printed, what is written, which code it exits with."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import noisesieve as ns
from noisesieve.commands.scan import scan
from noisesieve.commands.scan_settings import scan_settings
from noisesieve.core.errors import StateError, Stopped
from noisesieve.core.progress import NullWatcher, Session
from tests.conftest import QUICK, QUICK_OPTIONS, REPOSITORY, SAMPLE, Run, few_digits, paint, validate


@pytest.mark.slow
def test_a_scan_prints_its_findings_and_writes_the_run_folder(
    noisesieve: Run, inside: Run, colours: Path, tmp_path: Path
) -> None:
    (colours / "red/0.png").rename(colours / "blue/900.png")  # a red image among the blue ones
    (colours / "green/broken.png").write_bytes(b"no image")
    done = noisesieve("scan", colours, *QUICK)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "work/noisesieve-runs/colours"
    assert "labels are flagged" in done.stdout
    assert "blue/900.png" in done.stdout
    assert "green/broken.png: not an image of a supported format" in done.stderr
    assert "auto: resnet8 at 16 px on cpu" in done.stderr
    assert (
        max(len(line) for line in done.stdout.splitlines() if "Written to" not in line and "  noisesieve" not in line)
        <= 80
    )
    files = (
        "history.parquet margin_history.parquet model.json model.safetensors probabilities.parquet report.parquet "
        "review.html run.json summary.json"
    )
    assert sorted(file.name for file in run.iterdir() if not file.name.startswith(".")) == files.split()
    assert "noisesieve review" in done.stdout
    assert "blue/900.png" in (run / "review.html").read_text()
    for name in ("summary", "run", "model"):
        validate(json.loads((run / f"{name}.json").read_text()), name)
    assert json.loads((run / "run.json").read_text())["complete"] is True
    worst = ns.read_report(run).corrupted.to_pylist()[0]
    assert (worst["id"], worst["suggested_label"]) == ("blue/900.png", "red")
    history = pq.read_table(run / "history.parquet").to_pydict()
    assert history["epoch"] == list(range(1, 9))
    assert history["phase"][:4] == ["warm-up"] * 4

    again = noisesieve("scan", colours, *QUICK)
    assert again.returncode == 0
    assert "finished already" in again.stderr

    other = inside("scan", colours, *QUICK, "--seed", "7")
    assert other.returncode == 5
    assert "seed 0 (now 7)" in other.stderr
    assert "--force" in other.stderr

    paint(colours / "red/1.png", (9, 9, 9), seed=5)
    (colours / "red/2.png").rename(colours / "green/2000.png")
    changed = inside("scan", colours, *QUICK)
    assert changed.returncode == 5
    assert "red/1.png: content changed" in changed.stderr
    assert "red/2.png is missing" in changed.stderr

    forced = inside("scan", colours, *QUICK, "--force", "--json")
    assert forced.returncode == 0
    validate(json.loads(forced.stdout), "scan")

    strict = inside("scan", colours, *QUICK, "--strict", "-q")
    assert strict.returncode == 3
    assert strict.stdout.strip() == "noisesieve-runs/colours/report.parquet"
    assert "Not every image can be read: 1 cannot" in strict.stderr

    tampered = bytearray((run / "report.parquet").read_bytes())
    tampered[len(tampered) // 2] ^= 1
    (run / "report.parquet").write_bytes(tampered)
    assert inside("scan", colours, *QUICK).returncode == 5
    with pytest.raises(StateError, match="changed since the run wrote it"):
        ns.read_report(run)
    (run / "run.json").write_text("[]")
    damaged = inside("scan", colours, *QUICK)
    assert damaged.returncode == 5
    assert "damaged" in damaged.stderr


@pytest.mark.slow
def test_a_reader_that_leaves_and_streams_that_are_full(colours: Path, tmp_path: Path) -> None:
    def exit_code(redirection: str) -> int:
        command = f"{sys.executable} -m noisesieve scan {colours} -o {tmp_path / 'run'} {' '.join(QUICK)} {redirection}"
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = f"set -o pipefail; {command}"
        return subprocess.run(["bash", "-c", command], env=environment, timeout=HANGS, check=False).returncode

    assert exit_code("2>/dev/full >/dev/null") == 0
    assert exit_code("2>/dev/null | head -1 >/dev/null") == 0
    assert exit_code("2>/dev/null >/dev/full") == 4


@pytest.mark.slow
def test_a_forced_run_that_was_stopped_resumes(colours: Path, tmp_path: Path) -> None:
    long = {
        "weights": "none",
        "epochs": 3000,
        "warmup_epochs": 2000,
        "ramp_epochs": 10,
        "sieve_start": 2500,
        "flip": False,
    }
    settings = scan_settings(colours, output=tmp_path / "run", force=True, **long)
    notes: list[str] = []

    class Listener(NullWatcher):
        def note(self, text: str) -> None:
            notes.append(text)

    for asked in (600, 300):  # questions until it is told to stop: some while the images are read, the rest a step each
        answers = itertools.chain([None] * asked, itertools.repeat(Stopped("", exit_code=143)))
        with pytest.raises(Stopped):
            scan(settings, session=Session(Listener(), answers.__next__))
    assert any("Resuming in epoch" in note for note in notes)


def test_unreadable_rows_change_no_other_score(colours: Path, tmp_path: Path) -> None:
    plain = ns.scan(colours, output=tmp_path / "plain", **QUICK_OPTIONS).to_pandas().set_index("id")
    for i, name in enumerate(("red", "green", "blue")):
        (colours / name / f"x{i}.png").write_bytes(b"")
        big = paint(colours / name / f"truncated{i}.png", (5, 5, 5), size=(500, 500)).read_bytes()
        (colours / name / f"truncated{i}.png").write_bytes(big[: len(big) // 2])
    mixed = ns.scan(colours, output=tmp_path / "mixed", **QUICK_OPTIONS).to_pandas().set_index("id")
    assert len(mixed) == len(plain) + 6
    assert (mixed.verdict == "unreadable").sum() == 6
    shared = mixed.loc[plain.index]
    for column in ("loss", "margin", "threshold", "rank", "label_probability", "corruption_probability", "verdict"):
        assert (shared[column].to_numpy() == plain[column].to_numpy()).all(), column


def test_a_streamed_scan_is_the_cached_scan(colours: Path, tmp_path: Path) -> None:
    options = {**QUICK_OPTIONS, "epochs": 5, "sieve_start": 5, "warmup_epochs": 3}
    cached = ns.scan(colours, output=tmp_path / "cached", **options)
    streamed = ns.scan(colours, output=tmp_path / "streamed", cache_budget=0, **options)
    kept_nowhere = ns.scan(colours, output=tmp_path / "without", cache=False, **options)
    assert cached.path.read_bytes() == streamed.path.read_bytes() == kept_nowhere.path.read_bytes()


def test_a_table_is_scanned_with_its_columns(inside: Run, colours: Path, tmp_path: Path) -> None:
    rows = ["file;class;annotator;ok"]
    for name in ("red", "green", "blue"):
        rows += [f"{name}/{i}.png;{name};{'ann' if i % 2 else 'bob'};{int(i < 5)}" for i in range(40)]
    rows[1] = "red/0.png;blue;eve;1"  # wrong, but trusted
    rows[10] = "red/9.png;green;ann;0"  # wrong
    (colours / "labels.csv").write_text("\n".join(rows))
    columns = ("--path-column", "file", "--label-column", "class", "--trusted-column", "ok")
    done = inside("scan", colours / "labels.csv", *QUICK, *columns, "-o", tmp_path / "run", "-q")
    assert done.returncode == 0, done.stderr
    frame = ns.read_report(tmp_path / "run").to_pandas()
    assert frame.annotator[0] == "eve"
    assert frame.source_line[0] == 2
    assert frame.verdict[0] == "clean"
    assert frame.verdict[9] == "corrupted"
    assert frame.suggested_label[9] == "red"
    assert ns.read_report(tmp_path / "run").facts.label_column == "class"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere"], 3, "no such file or folder"),
        (["DATA", "--device", "cuda"], 2, "no CUDA device"),
        (["DATA", "--epochs", "many"], 2, "--epochs"),
        (["DATA", "--sieve-eps", "2"], 2, "--sieve-eps"),
        (["DATA", "--preset", "imagenet"], 2, "auto, paper, cifar, cifar-code, clothing1m"),
        (["DATA", "--backbone", "vgg"], 2, "resnet8"),
        (["DATA", "--max-time", "soon"], 2, "90s"),
        (["DATA", "--cache-budget", "big"], 2, "20GB"),
        (["DATA", "-o", "DATA/run"], 4, "inside the dataset"),
        (["DATA", "-o", "DATA/red/0.png/run"], 4, ""),
        (["DATA", "--split", "train"], 2, "no splits"),
        (["DATA", "--bogus"], 2, "--bogus"),
        (["DATA", "--seed", "99999999999999999999"], 2, "--seed"),
        (["DATA", "--image-size", "100000"], 2, "--image-size"),
        (["DATA", "--beta", "nan"], 2, "--beta"),
        (["DATA", "--max-pixels", "0"], 2, "--max-pixels"),
        (["DATA", "--trusted-column", "x"], 2, "--trusted-column is for tables"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_line(
    inside: Run, colours: Path, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    done = inside("scan", *(argument.replace("DATA", str(colours)) for argument in arguments))
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "work/noisesieve-runs").exists()


def test_a_loss_that_is_not_finite_exits_with_6(inside: Run, colours: Path) -> None:
    done = inside("scan", colours, *QUICK, "--lr", "1e30")
    assert done.returncode == 6
    assert "not finite in epoch 1, step" in done.stderr


def test_scanning_the_working_folder_writes_beside_it(colours: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "noisesieve", "scan", ".", *QUICK, "-q"],
        cwd=colours,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "noisesieve-runs/colours/report.parquet").exists()
    assert sorted(entry.name for entry in colours.iterdir()) == ["blue", "green", "red"]


def test_hostile_names_are_literal_on_the_terminal(inside: Run, tmp_path: Path) -> None:
    names = ["[/red]", "\x1b[31mred", "<script>alert(1)</script>", "=HYPERLINK(1)", "::error::x", "a|b", "007", "NA"]
    for c, name in enumerate(names):
        for i in range(12):
            folder = tmp_path / "data" / name.replace("/", "∕")
            paint(folder / f"{name.replace('/', '∕')}{i}.png", (c * 30, 255 - c * 30, (c * 90) % 255), seed=c * 99 + i)
    done = inside("scan", tmp_path / "data", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    for shown in ("[∕red]", "<script>alert(1)<∕script>", "=HYPERLINK(1)", ": :error: :x", "a|b", "\\x1b[31mred"):
        assert shown in done.stdout
    labels = set(ns.read_report(tmp_path / "work/noisesieve-runs/data").table["label"].to_pylist())
    assert {"007", "NA", "\\x1b[31mred"} <= labels


def test_every_naughty_string_can_be_a_label(shared_data: Path, tmp_path: Path) -> None:
    strings = json.loads((shared_data / "hostile/naughty-strings.json").read_text())
    labels = [s for s in dict.fromkeys(strings) if s and "," not in s and ";" not in s and "|" not in s][:200]
    image = paint(tmp_path / "x.png", (1, 2, 3))
    lines = [json.dumps({"path": image.name, "label": label}) for label in labels for _ in range(2)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    options = {"weights": "none", "epochs": 2, "warmup_epochs": 1, "ramp_epochs": 1, "sieve_start": 2, "flip": False}
    found = ns.scan(tmp_path / "t.jsonl", output=tmp_path / "run", **options)
    assert found.table["label"].to_pylist() == [label for label in labels for _ in range(2)]
    assert found.summary.duplicates.with_different_labels == 1
    assert all(row.low_evidence for row in found.summary.classes)


def test_options_come_from_flag_then_environment_then_file(
    inside: Run, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "work"
    (home / "noisesieve.toml").write_text("epochs = 9\n[scan]\nbatch-size = 20\nlr = 0.3\n")
    monkeypatch.setenv("NOISESIEVE_BATCH_SIZE", "24")
    monkeypatch.setenv("NOISESIEVE_LR", "0.5")
    done = inside("scan", colours, "--dry-run", "--json", "--lr", "0.4")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    validate(found, "dry_run")
    assert (found["recipe"]["epochs"], found["recipe"]["batch_size"], found["recipe"]["lr"]) == (9, 24, 0.4)
    (home / "pyproject.toml").write_text("tool = 3\n")
    (home / "noisesieve.toml").write_text("epohcs = 9\n")
    assert inside("scan", "--help").returncode == 0
    wrong = inside("scan", colours, "--dry-run")
    assert wrong.returncode == 2
    assert "epohcs" in wrong.stderr


def test_closed_standard_streams_do_no_harm(colours: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m noisesieve scan {colours} -o {tmp_path / 'run'} {' '.join(QUICK)} 0<&- 1>&- 2>&-"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run(["bash", "-c", command], env=environment, timeout=HANGS, check=False).returncode == 0
    assert (tmp_path / "run/report.parquet").exists()


def test_help_ends_in_an_example_that_runs(inside: Run, colours: Path, tmp_path: Path) -> None:
    assert "Example: noisesieve scan ./dataset" in inside("--help").stdout
    text = inside("scan", "--help").stdout
    example = next(line for line in text.splitlines() if "Example:" in line).split("Example: noisesieve ")[1].split()
    shutil.copytree(colours, tmp_path / "work/dataset")
    done = inside(*example, *QUICK)
    assert done.returncode == 0, done.stderr
    for command in ("inject", "evaluate", "bench"):
        text = inside(command, "--help").stdout
        example = text[text.index("Example: noisesieve ") :].split("Example: noisesieve ")[1].split("\n\n")[0].split()
        if command == "evaluate":
            rows = [f"{file.parent.name}/{file.name},red" for file in sorted(colours.rglob("*.png"))]
            (tmp_path / "work/truth.csv").write_text("path,label\n" + "\n".join(rows) + "\n")
        done = inside(*example, *(QUICK if command == "bench" else ()))
        assert done.returncode == 0, done.stderr
    assert inside("--version").stdout.strip() == f"noisesieve {ns.__version__}"


def started(data: Path, home: Path, *options: str) -> subprocess.Popen[str]:
    home.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "noisesieve", "scan", str(data), "-o", "run", "--no-flip", *options],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_checkpoint(run: Path, process: subprocess.Popen[str], count: int = 1) -> None:
    while process.poll() is None:
        names = sorted(run.glob("checkpoint/*.ckpt"))
        if names and int(names[-1].stem) >= count:
            return
        time.sleep(0.01)
    out, err = process.communicate()
    raise AssertionError(f"no checkpoint: {out}{err}")


HANGS = 600  # seconds after which a process counts as hanging; no test depends on how fast it is
LONG = (
    *("--weights", "none", "--epochs", "24", "--warmup-epochs", "12"),
    *("--ramp-epochs", "4", "--sieve-start", "15"),
)


@pytest.mark.slow
def test_a_run_killed_at_any_time_resumes_to_the_same_bytes(colours: Path, tmp_path: Path) -> None:
    undisturbed = started(colours, tmp_path / "a", *LONG)
    _, err = undisturbed.communicate(timeout=HANGS)
    assert undisturbed.returncode == 0, err
    for updates in (7, 40):  # in the warm-up, and again later
        victim = started(colours, tmp_path / "b", *LONG)
        wait_for_checkpoint(tmp_path / "b/run", victim, count=updates * 2)
        victim.kill()
        victim.communicate()
        assert json.loads((tmp_path / "b/run/run.json").read_text())["complete"] is False
    resumed = started(colours, tmp_path / "b", *LONG)
    _, err = resumed.communicate(timeout=HANGS)
    assert resumed.returncode == 0, err
    assert "Resuming in epoch" in err
    assert (tmp_path / "a/run/report.parquet").read_bytes() == (tmp_path / "b/run/report.parquet").read_bytes()
    assert not (tmp_path / "b/run/checkpoint").exists()


@pytest.mark.slow
def test_a_finished_run_stays_whole_until_the_one_that_replaces_it_is(
    colours: Path, tmp_path: Path, inside: Run
) -> None:
    run = tmp_path / "a/run"
    first = started(colours, tmp_path / "a", *QUICK)
    assert first.wait(HANGS) == 0, first.communicate()
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != ".lock"}
    victim = started(colours, tmp_path / "a", *LONG, "--force")
    wait_for_checkpoint(run, victim)
    victim.kill()
    victim.communicate()
    assert {name: (run / name).read_bytes() for name in before} == before
    assert inside("export", run, "--to", "csv", "--only", "all", "-o", tmp_path / "old.csv").returncode == 0
    again = started(colours, tmp_path / "a", *QUICK)
    _, err = again.communicate(timeout=HANGS)
    assert again.returncode == 0, err
    assert "finished already" in err
    assert "Another scan into this folder was stopped" in err
    resumed = started(colours, tmp_path / "a", *LONG, "--force")
    _, err = resumed.communicate(timeout=HANGS)
    assert resumed.returncode == 0, err
    assert "Resuming in epoch" in err
    assert not (run / "checkpoint").exists()
    assert (run / "report.parquet").read_bytes() != before["report.parquet"]
    assert (run / "review.html").read_bytes() != before["review.html"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_and_its_own_code(colours: Path, tmp_path: Path, number: int, code: int) -> None:
    process = started(colours, tmp_path / "a", *LONG)
    wait_for_checkpoint(tmp_path / "a/run", process)
    process.send_signal(number)
    _, err = process.communicate(timeout=HANGS)
    assert process.returncode == code
    assert "Run the same command again to resume" in err
    assert list((tmp_path / "a/run/checkpoint").glob("*.ckpt"))


def test_max_time_stops_at_a_checkpoint(inside: Run, colours: Path, tmp_path: Path) -> None:
    done = inside("scan", colours, *LONG, "--epochs", "5000", "--max-time", "3s", "-o", tmp_path / "run")
    assert done.returncode == 143
    assert "--max-time is reached" in done.stderr


def test_a_second_process_is_refused_with_the_pid(inside: Run, colours: Path, tmp_path: Path) -> None:
    first = started(colours, tmp_path / "work", *LONG, "--epochs", "5000")
    wait_for_checkpoint(tmp_path / "work/run", first)
    second = inside("scan", colours, "-o", "run", "--no-flip", *LONG, "--epochs", "5000")
    first.kill()
    first.communicate()
    assert second.returncode == 4
    assert str(first.pid) in second.stderr


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_refused_before_training(inside: Run, colours: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False, capture_output=True
    ).returncode:
        pytest.skip("this place allows no mounts")
    try:
        done = inside("scan", colours, *QUICK, "-o", disk / "run")
        assert done.returncode == 4
        assert "free" in done.stderr
        assert "warm-up" not in done.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_few_examples_and_many_classes_run_and_are_marked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for c in range(60):
        paint(tmp_path / f"data/class {c}/only.png", tuple(rng.integers(0, 255, 3)), seed=c)
    found = ns.scan(tmp_path / "data", output=tmp_path / "run", **QUICK_OPTIONS)
    assert found.to_pandas().low_evidence.all()
    assert len(found.summary.classes) == 60


def test_the_python_api_returns_the_report(colours: Path, tmp_path: Path) -> None:
    found = ns.scan(str(colours), output=str(tmp_path / "run"), **QUICK_OPTIONS)
    assert isinstance(found, ns.Report)
    assert found.table.num_rows == len(found.to_pandas()) == 120
    assert ns.read_report(tmp_path / "run").table.equals(found.table)


def precision_and_recall(run: Path) -> tuple[float, float]:
    frame = ns.read_report(run).to_pandas()
    with (SAMPLE / "truth.csv").open() as file:
        truth = dict(line.strip().split(",") for line in file)
    wrong = frame.label != frame.path.map(truth)
    flagged = frame.verdict == "corrupted"
    hits = (flagged & wrong).sum()
    return hits / flagged.sum(), hits / wrong.sum()


@pytest.mark.slow
def test_the_default_scan_finds_the_planted_flips_of_the_sample_data(tmp_path: Path) -> None:
    half = few_digits(tmp_path / "digits", each=90)
    found = ns.scan(half, output=tmp_path / "run")
    precision, recall = precision_and_recall(tmp_path / "run")
    assert precision >= 0.97
    assert recall >= 0.90
    assert not found.summary.training.facts.flip  # a mirrored digit is another thing


def test_a_finished_run_is_finished_whatever_is_asked_beside(inside: Run, colours: Path) -> None:
    words = ("scan", colours, *QUICK, "-o", "run")
    assert inside(*words).returncode == 0
    again = inside(*words, "--max-time", "0.001s")
    assert again.returncode == 0, again.stderr
    assert "finished already" in again.stderr
    Path("run/review.html").unlink()  # as if it was killed while the page was written
    assert inside(*words).returncode == 0
    assert "suspects" in Path("run/review.html").read_text()
    other = inside(*words, "--beta", "3")
    assert other.returncode == 5
    assert "beta not set (now 3)" in other.stderr


def test_weights_that_cannot_be_read_are_refused_before_anything_is_written(inside: Run, colours: Path) -> None:
    Path("junk.pth").write_bytes(b"\x80\x04junk")
    done = inside("scan", colours, "--weights", "junk.pth", "-o", "run")
    assert done.returncode == 3
    assert "not a torch file of plain tensors" in done.stderr
    assert "weights_only" not in done.stderr
    assert not Path("run").exists()
    torch.save(torch.nn.Linear(3, 3).state_dict(), "other.pth")
    assert inside("scan", colours, "--weights", "other.pth", "-o", "run").returncode == 3
    assert not Path("run/run.json").exists()


def test_a_majority_class_is_not_called_wrong(inside: Run, tmp_path: Path) -> None:
    few_digits(tmp_path / "digits", each=20)
    with (SAMPLE / "truth.csv").open() as file:
        truth = dict(line.strip().split(",") for line in file)
    rows = [(path, truth[str(path.relative_to(tmp_path / "digits"))]) for path in (tmp_path / "digits").rglob("*.png")]
    lines = [f"{path.relative_to(tmp_path)},{'zero' if digit == '0' else 'other'}" for path, digit in sorted(rows)]
    (tmp_path / "t.csv").write_text("path,label\n" + "\n".join(lines) + "\n")
    done = inside("scan", tmp_path / "t.csv", "-o", "run", *LONG, "--no-flip", "--no-review", "--image-size", "16")
    assert done.returncode == 0, done.stderr
    assert "Class 'other' has 94% of the labels: beta is lowered from 2 to 0.53" in done.stderr
    assert ns.read_report("run").summary.corrupted <= 0.03 * len(lines)  # all are right; with --beta 2 most are flagged


def torchrun(*arguments: object, home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "noisesieve", *map(str, arguments)),
        ],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_processes_agree_with_one(inside: Run, tmp_path: Path) -> None:
    words = ("scan", few_digits(tmp_path / "digits", each=50), *LONG, "--no-flip", "--no-review", "-q")
    process = torchrun(*words, "-o", tmp_path / "two", home=tmp_path)
    assert inside(*words, "-o", tmp_path / "one").returncode == 0
    _, err = process.communicate(timeout=HANGS)
    assert process.returncode == 0, err
    one, two = (ns.read_report(tmp_path / name).to_pandas() for name in ("one", "two"))
    assert (one.verdict == two.verdict).mean() >= 0.95
    assert min(*precision_and_recall(tmp_path / "one"), *precision_and_recall(tmp_path / "two")) >= 0.9


@pytest.mark.slow
def test_when_a_rank_is_killed_all_end_and_the_run_resumes(colours: Path, tmp_path: Path) -> None:
    arguments = ("scan", colours, "-o", tmp_path / "run", "--no-flip", *LONG)
    process = torchrun(*arguments, "--epochs", "3000", home=tmp_path)
    wait_for_checkpoint(tmp_path / "run", process, count=10)
    found = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "noisesieve"], capture_output=True, check=True)
    os.kill(int(found.stdout.split()[-1]), signal.SIGKILL)
    process.communicate(timeout=HANGS)
    assert process.returncode != 0
    again = torchrun(*arguments, "--epochs", "3000", home=tmp_path)
    assert again.stderr is not None
    assert any("Resuming in epoch" in line for line in again.stderr)
    again.terminate()
    again.communicate(timeout=HANGS)


def test_flagged_and_expected_wrong_are_shown_by_annotator(inside: Run, colours: Path) -> None:
    files = sorted(colours.rglob("*.png"))
    lines = [f"{f.parent.name}/{f.name},{f.parent.name},{'ann' if i % 2 else 'bob'}" for i, f in enumerate(files)]
    (colours / "in.csv").write_text("path,label,annotator\n" + "\n".join(lines) + "\n")
    done = inside("scan", colours / "in.csv", *QUICK, "-o", "run", "--group-by", "annotator")
    assert done.returncode == 0, done.stderr
    assert "By annotator" in done.stdout
    groups = json.loads(Path("run/summary.json").read_text())["groups"]
    assert groups["column"] == "annotator"
    assert {row["value"] for row in groups["values"]} == {"ann", "bob"}
    assert sum(row["of"] for row in groups["values"]) == len(files)
    assert "annotator" in Path("run/review.html").read_text()
    again = inside("scan", colours / "in.csv", *QUICK, "-o", "run", "--group-by", "label")  # nothing is trained for it
    assert again.returncode == 0, again.stderr
    assert "finished already" in again.stderr
    assert json.loads(Path("run/summary.json").read_text())["groups"]["column"] == "label"
    assert inside("scan", colours / "in.csv", *QUICK, "-o", "x", "--group-by", "nobody").returncode == 2
