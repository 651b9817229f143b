"""The frozen path as a user meets it: chosen by itself, cached, stopped, checked against, on its own body only."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision

import noisesieve as ns
from noisesieve.commands.scan_settings import scan_settings
from noisesieve.learn.device import prepare_device
from noisesieve.learn.frozen.features import DepthFile, Halves
from noisesieve.learn.frozen.heads import Heads
from noisesieve.learn.plan import plan
from noisesieve.learn.recipes import recipe_from_document, recipe_to_document
from noisesieve.learn.schedule import Schedule
from noisesieve.learn.training_settings import TrainingOptions
from noisesieve.learn.warmup import held_out_rows
from noisesieve.pixels import cache_list
from tests.conftest import COLOURS, QUICK, Run, few_digits, paint, validate


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Pictures of 64 px in three easy classes; six lie in the wrong folder, one is the same twice, one is broken."""
    root = tmp_path / "photos"
    for c, (name, colour) in enumerate(COLOURS.items()):
        for i in range(20):
            paint(root / name / f"{i}.png", colour, seed=100 * c + i, size=(64, 64))
    for i in range(6):
        paint(root / "red" / f"wrong{i}.png", COLOURS["blue"], seed=900 + i, size=(64, 64))
    shutil.copy(root / "green/0.png", root / "green/0-again.png")
    (root / "green/broken.png").write_bytes(b"\x89PNG no image")
    return root


def test_photos_are_scanned_with_frozen_features_and_the_output_says_so(inside: Run, photos: Path) -> None:
    done = inside("scan", photos, "-o", "run", "--no-review")
    assert done.returncode == 0, done.stderr
    assert "10 heads on frozen lite0 at 160 px" in done.stderr
    assert "--weights none" in done.stderr
    report = ns.read_report("run")
    verdict = dict(zip(report.table["id"].to_pylist(), report.table["verdict"].to_pylist(), strict=True))
    wrong = {f"red/wrong{i}.png" for i in range(6)}
    assert set(report.table.sort_by("rank")["id"].to_pylist()[:6]) == wrong
    flagged = {name for name, word in verdict.items() if word == "corrupted"}
    assert flagged <= wrong
    assert len(flagged) >= 5  # 66 rows tell the noise rate to within a row
    assert verdict["green/broken.png"] == "unreadable"
    validate(report.summary.to_document(), "summary")
    card = json.loads(Path("run/model.json").read_text())
    validate(card, "model")
    assert card["frozen"]["weights"] == "lite0"
    assert Path("run/model.safetensors").stat().st_size < 100_000  # the head alone
    again = inside("scan", photos, "-o", "run", "--no-review")
    assert "finished already" in again.stderr


@pytest.mark.slow
def test_features_are_kept_by_content_and_weights(inside: Run, photos: Path, tmp_path: Path) -> None:
    options = ("--no-review", "--cache-dir", tmp_path / "kept")
    assert inside("scan", photos, "-o", "first", *options).returncode == 0
    listed = json.loads(inside("cache", "--cache-dir", tmp_path / "kept", "--json").stdout)
    validate(listed, "cache")
    assert sorted(entry["kind"] for entry in listed["entries"]) == ["features", "pixels"]
    assert {entry["images"] for entry in listed["entries"] if entry["kind"] == "features"} == {66}  # one is there twice
    warm = inside("scan", photos, "-o", "second", *options)
    assert "The features were in the cache." in warm.stderr
    assert Path("first/report.parquet").read_bytes() == Path("second/report.parquet").read_bytes()
    bare = inside("scan", photos, "-o", "third", "--no-review", "--no-cache")
    assert bare.returncode == 0, bare.stderr
    assert Path("first/report.parquet").read_bytes() == Path("third/report.parquet").read_bytes()
    paint(photos / "blue/new.png", COLOURS["blue"], seed=77, size=(64, 64))
    seen: list[int] = []
    append = DepthFile.append

    def counted(self: DepthFile, contents: list[str], values: Halves) -> None:
        seen.append(len(contents))
        append(self, contents, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DepthFile, "append", counted)
        assert inside("scan", photos, "-o", "fourth", *options).returncode == 0
    assert seen == [1, 1]  # only the new image is computed, at both depths


def test_a_stop_while_looking_keeps_what_was_seen(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from noisesieve.commands.scan import scan
    from noisesieve.commands.scan_settings import scan_settings
    from noisesieve.core.errors import Stopped
    from noisesieve.core.progress import NullWatcher, Session

    class Impatient(NullWatcher):
        def __init__(self) -> None:
            self.looking = self.asked = False

        def stage(self, name: str, total: int) -> None:
            self.looking = name == "features"

        def advance(self, done: int = 1, **facts: object) -> None:
            self.asked = self.asked or self.looking

    monkeypatch.setattr("noisesieve.learn.frozen.features.CHUNK", 16)
    settings = scan_settings(photos, output=tmp_path / "run", cache_dir=tmp_path / "kept", review=False)
    watcher = Impatient()
    with pytest.raises(Stopped):
        scan(settings, session=Session(watcher, lambda: Stopped("", exit_code=143) if watcher.asked else None))
    (entry,) = [entry for entry in cache_list.list_entries(tmp_path / "kept") if entry.kind == "features"]
    assert 0 < entry.images < 66
    scan(settings)
    fresh = scan_settings(photos, output=tmp_path / "fresh", cache=False, review=False)
    scan(fresh)
    assert (tmp_path / "run/report.parquet").read_bytes() == (tmp_path / "fresh/report.parquet").read_bytes()


def test_a_batch_is_checked_by_the_head_and_only_on_its_own_backbone(inside: Run, photos: Path, tmp_path: Path) -> None:
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), tmp_path / "mine.pth")
    options = ("--weights", tmp_path / "mine.pth", "--freeze", "--no-review", "--image-size", "96")
    done = inside("scan", photos, "-o", "run", *options)
    assert done.returncode == 0, done.stderr
    assert "heads on frozen resnet18 (mine.pth) at 96 px" in done.stderr
    assert str(tmp_path) not in Path("run/report.parquet").read_bytes().decode("latin1")
    batch = tmp_path / "batch"
    for i in range(5):
        paint(batch / "red" / f"{i}.png", COLOURS["red"], seed=500 + i, size=(64, 64))
        paint(batch / "blue" / f"{i}.png", COLOURS["blue"], seed=600 + i, size=(64, 64))
    assert inside("check", batch, "--model", "run").returncode == 0
    paint(batch / "blue" / "no.png", COLOURS["red"], seed=700, size=(64, 64))
    found = json.loads(inside("check", batch, "--model", "run", "--json").stdout)
    assert found["corrupted"] == 1
    (tmp_path / "mine.pth").rename(tmp_path / "moved.pth")
    gone = inside("check", batch, "--model", "run")
    assert gone.returncode == 5
    assert "--weights" in gone.stderr
    assert inside("check", batch, "--model", "run", "--weights", tmp_path / "moved.pth").returncode == 1
    torch.manual_seed(5)
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), tmp_path / "mine.pth")
    other = inside("check", batch, "--model", "run")
    assert other.returncode == 5
    assert "not the backbone" in other.stderr
    assert inside("scan", photos, "-o", "run", *options).returncode == 5  # other weights make another run


def test_fine_tuning_starts_from_the_file_and_moves_its_layers_less(inside: Run, photos: Path, tmp_path: Path) -> None:
    weights = torchvision.models.resnet18(weights=None).state_dict()
    torch.save(weights, tmp_path / "mine.pth")
    quick = ("--epochs", "2", "--warmup-epochs", "1", "--sieve-start", "2", "--image-size", "72", "--lr", "0.001")
    done = inside("scan", photos, "-o", "run", "--weights", tmp_path / "mine.pth", "--no-review", *quick)
    assert done.returncode == 0, done.stderr
    assert "resnet18 (mine.pth) at 72 px" in done.stderr
    from safetensors.torch import load_file

    tuned = load_file("run/model.safetensors")
    change = (tuned["body.conv1.weight"] - weights["conv1.weight"]).norm() / weights["conv1.weight"].norm()
    assert 0 < change < 0.05
    card = json.loads(Path("run/model.json").read_text())
    assert card["frozen"] is None
    assert card["mean"] == pytest.approx([123.675, 116.28, 103.53])


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--freeze", "--weights", "none"), 2, "no pretrained weights to freeze"),
        (("--freeze", "--score-pass", "train"), 2, "--score-pass"),
        (("--weights", "nowhere.pth"), 3, "no such file"),
        (("--weights", ""), 2, "file with the name of a keyword"),
        (("--freeze", "--preset", "cifar"), 2, "--preset cifar"),
        (("--weights", "imagenet", "--backbone", "resnet8"), 2, "none for resnet8"),
        (("--weights", "lite0", "--backbone", "resnet18"), 2, "not for resnet18"),
    ],
)
def test_nonsense_is_refused_before_anything_is_read(
    inside: Run, photos: Path, options: tuple[str, ...], code: int, words: str
) -> None:
    done = inside("scan", photos, "-o", "run", *options)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert not Path("run").exists()


def test_a_bench_on_frozen_features_runs_every_method(inside: Run, photos: Path, tmp_path: Path) -> None:
    (photos / "green/broken.png").unlink()
    truth = tmp_path / "truth.csv"
    lines = [f"{file.relative_to(photos)},{file.parent.name}" for file in sorted(photos.rglob("*.png"))]
    wrong = ("wrong" in line for line in lines)
    truth.write_text(
        "path,label\n" + "\n".join(f"{x.split(',')[0]},blue" if bad else x for x, bad in zip(lines, wrong, strict=True))
    )
    done = inside("bench", photos, "--truth", truth, "--weights", "lite0", "--freeze", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    validate(found, "bench")
    rows = {row["method"]: row for row in found["methods"]}
    assert list(rows) == [
        "noisesieve",
        "paper-heads",
        "ce",
        "ce-sieve",
        "aum",
        "aum-zero",
        "knn",
        "cleanlab",
        "cleanlab-margin",
        "cleanlab-best",
    ]
    assert rows["noisesieve"]["average_precision"] == 1.0
    assert rows["noisesieve"]["f1"] > 0.9


def test_a_dry_run_and_a_doctor_know_what_would_be_done(inside: Run, photos: Path) -> None:
    planned = json.loads(inside("scan", photos, "--dry-run", "--json").stdout)
    validate(planned, "dry_run")
    assert planned["recipe"]["frozen"]
    assert planned["estimate"]["seconds"] > 0
    assert "frozen lite0" in inside("doctor", photos).stdout
    assert inside("scan", photos, "-q", "--no-review", "-o", "run").returncode == 0
    again = json.loads(inside("scan", photos, "--dry-run", "--json").stdout)
    assert again["estimate"]["seconds"] == 0  # all features are in the cache


def test_without_anything_missing_no_network_is_built(inside: Run, photos: Path, tmp_path: Path) -> None:
    options = ("--no-review", "--cache-dir", tmp_path / "kept")
    assert inside("scan", photos, "-o", "first", *options).returncode == 0

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a network was built")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("noisesieve.learn.frozen.features.build", refuse)
        warm = inside("scan", photos, "-o", "second", *options)
    assert warm.returncode == 0, warm.stderr
    (folder,) = (tmp_path / "kept").glob("*lite0*")
    content = bytearray((folder / "middle.f16").read_bytes())
    content[1000] ^= 1
    (folder / "middle.f16").write_bytes(content)
    mended = inside("scan", photos, "-o", "third", *options)
    assert mended.returncode == 0, mended.stderr
    assert "are damaged: they are computed again" in mended.stderr
    assert Path("first/report.parquet").read_bytes() == Path("third/report.parquet").read_bytes()


def test_on_a_gpu_the_network_and_the_heads_are_compared(
    inside: Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(160):
        for c, (name, colour) in enumerate(COLOURS.items()):
            paint(photos / name / f"more{i}.png", colour, seed=5000 + 1000 * c + i, size=(24, 24))
    monkeypatch.setattr("noisesieve.learn.plan.is_gpu", lambda device: True)  # the CPU takes the part of a GPU
    quick = ("--epochs", "8", "--image-size", "16", "--no-review")
    done = inside("scan", photos, "-o", "run", *quick)
    assert done.returncode == 0, done.stderr
    assert "the better one decides" in done.stderr
    summary = json.loads(Path("run/summary.json").read_text())
    validate(summary, "summary")
    judges = summary["training"]["compared_judges"]
    assert {judge["judge"] for judge in judges} == {"network", "heads"}
    assert judges[0]["agreement"] >= judges[1]["agreement"]
    assert summary["training"]["recipe"]["frozen"] == (judges[0]["judge"] == "heads")
    assert inside("check", photos, "--model", "run").returncode in (0, 1)


def test_a_model_of_an_older_run_still_loads(inside: Run, photos: Path, tmp_path: Path) -> None:
    """Runs of earlier versions have one depth and do not name it; whole networks have the old names of tensors."""
    from safetensors.torch import load_file, save_file

    from noisesieve.core.files import sha256_of, write_json
    from noisesieve.report.saved_model import load_model

    assert inside("scan", photos, "-o", "run", "--no-review").returncode == 0
    card = json.loads(Path("run/model.json").read_text())
    del card["depths"], card["rank_model"]
    card["schema_version"] = 1
    head = load_file("run/model.safetensors")
    old = tmp_path / "old"
    old.mkdir()
    weight = head["fc.weight"][:, :1280].contiguous()
    save_file({"fc.weight": weight, "fc.bias": head["fc.bias"]}, old / "model.safetensors")
    write_json(old / "model.json", {**card, "sha256": sha256_of(old / "model.safetensors")})
    model = load_model(old, torch.device("cpu"))
    assert [depth.name for depth in model.network.depths] == ["last"]
    assert torch.equal(model.network.fc.weight, weight)


def test_network_and_heads_are_compared_on_rows_that_neither_was_trained_on(
    inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU by asking for both; on a GPU it is the default."""
    from noisesieve.commands import _train

    data = few_digits(tmp_path / "digits", each=60)
    seen: dict[str, set[int]] = {"network": set(), "heads": set()}
    plans, inputs = _train.Loop.plans, Heads._inputs

    def watched_plans(self: Any, batches: list[torch.Tensor]) -> Any:
        for step in plans(self, batches):
            seen["network"].update(step.used.tolist())
            yield step

    def watched_inputs(self: Any, batch: torch.Tensor, generator: torch.Generator) -> Any:
        if self.rows == 600:
            seen["heads"].update(batch[self.keep[batch].any(dim=1)].tolist())
        return inputs(self, batch, generator)

    monkeypatch.setattr(_train.Loop, "plans", watched_plans)
    monkeypatch.setattr(Heads, "_inputs", watched_inputs)
    done = inside("scan", data, *QUICK, "--compare-heads", "-o", "run", "--no-review")
    assert done.returncode == 0, done.stderr
    said = re.search(
        r"The network agrees with ([\d.]+)% of 60 labels that were kept out of both, the heads with ([\d.]+)% "
        r"\(difference ([+-][\d.]+)%, 95 % interval ([+-][\d.]+)% to ([+-][\d.]+)%\): "
        r"the (network decides|heads decide)",
        " ".join(done.stderr.split()),
    )
    assert said is not None, done.stderr
    assert (float(said[4]) > 0) == (said[6] == "heads decide")
    judges = ns.read_report("run").summary.training.facts.compared_judges
    assert judges is not None
    assert said[6].startswith(judges[0].judge)
    labels = torch.from_numpy(np.arange(600) // 60)
    kept_out = set(held_out_rows(labels, seed=0).tolist())
    assert len(kept_out) == 60
    assert seen["network"] == seen["heads"] == set(range(600)) - kept_out


def test_a_scaled_batch_has_two_hundred_steps_and_a_rate_that_rises() -> None:
    sides = np.full(100, 32)

    def planned(rows: int, *, scale_batch: bool) -> Any:
        options = TrainingOptions(weights="none", scale_batch=scale_batch)
        return plan(options, rows=rows, classes=10, longest_sides=sides, device="cpu")

    plain, scaled = (planned(10**6, scale_batch=wanted) for wanted in (False, True))
    assert 10**6 // scaled.batch_size == 200
    assert scaled.lr == pytest.approx(plain.lr * (scaled.batch_size / plain.batch_size) ** 0.5)
    schedule = Schedule(scaled, scaled.warmup_epochs)
    rates = [schedule.learning_rate(epoch, 0.5) for epoch in (1, 2, 4, 6)]
    assert rates[0] < rates[1] < rates[2] < rates[3] == scaled.lr
    assert recipe_from_document(recipe_to_document(scaled)) == scaled
    assert "lr_rise" not in recipe_to_document(plain)  # as in runs of earlier versions
    assert planned(2000, scale_batch=True).batch_size == planned(2000, scale_batch=False).batch_size


def test_options_that_were_left_alone_leave_a_runs_identity_as_it_was() -> None:
    plain = scan_settings("x").identity()
    assert not {"scale_batch", "compare_heads"} & set(plain["training"])  # type: ignore[arg-type]
    assert "deterministic" not in plain
    assert scan_settings("x", deterministic=True).identity() != plain
    assert scan_settings("x", compare_heads=False).identity() != plain


@pytest.mark.parametrize("wanted", [False, True])
def test_a_gpu_computes_fast_unless_the_same_bits_are_wanted(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("deterministic", "benchmark"):
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    asked: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    prepare_device(torch.device("cuda"), deterministic=wanted)
    assert torch.backends.cudnn.deterministic is wanted
    assert torch.backends.cudnn.benchmark is not wanted
    assert asked == ["high"]
