"""Consistency training: what teaches, what it may start from, that it resumes, and that `check` takes its model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

import noisesieve as ns
from noisesieve.commands._retrain_rows import LABELLED, UNLABELLED, UNUSED, assign_roles
from noisesieve.commands._retrain_summaries import ALL, CONSISTENT, KEPT, SCAN, SUGGESTED
from noisesieve.commands.command_settings import RetrainSettings
from noisesieve.commands.measure_settings import TestSettings
from noisesieve.commands.retrain import retrain
from noisesieve.core.errors import Stopped, UsageError
from noisesieve.core.progress import NullWatcher, Session
from noisesieve.learn.augment import draw_mix
from noisesieve.learn.checkpoint import Checkpoint
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.loop import Loop
from noisesieve.learn.plan import plan as scan_plan
from noisesieve.learn.recipes import NetworkRecipe as Recipe
from noisesieve.learn.recipes import RetrainRecipe
from noisesieve.learn.training_data import balanced_batches
from noisesieve.learn.training_settings import TrainingOptions
from noisesieve.retrain import retrain_plan as plans
from noisesieve.retrain.data import LabelledTestSet, RetrainData
from noisesieve.retrain.loop import RetrainLoop, consistency_loss
from noisesieve.retrain.retrain_settings import RetrainOptions
from noisesieve.retrain.strong_augment import cutout, draw_policies, draw_strong, strong_augment
from tests.conftest import COLOURS, QUICK_OPTIONS, REPOSITORY, Run, paint, validate
from tests.learn.test_loop import RECIPE, Memory, training_data
from tests.runs import built_once

QUICK = ("--epochs", "3", "--batch-size", "16")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run over three colours, six images in the wrong folder and one broken; and a test set."""
    return built_once(tmp_path_factory, "retrain", build_home)


def build_home(home: Path) -> None:
    for c, (name, colour) in enumerate(COLOURS.items()):
        for i in range(30):
            paint(home / "data" / name / f"{i}.png", colour, seed=100 * c + i)
        for i in range(8):
            paint(home / "test" / name / f"{i}.png", colour, seed=5000 + 100 * c + i)
    for i in range(6):
        paint(home / "data/red" / f"wrong{i}.png", COLOURS["blue"], seed=900 + i)
    (home / "data/green/broken.png").write_bytes(b"no image")
    options = {**QUICK_OPTIONS, "epochs": 12, "warmup_epochs": 7, "sieve_start": 10}
    ns.scan(home / "data", output=home / "run", cache_dir=home / "cache", review=False, **options)


def settings(home: Path, out: Path, **options: object) -> RetrainSettings:
    own = {"epochs": 3, "batch_size": 16, **{k: v for k, v in options.items() if k in vars(RetrainOptions())}}
    others = {name: value for name, value in options.items() if name not in vars(RetrainOptions())}
    return RetrainSettings(home / "run", out, training=RetrainOptions(**own), **others)  # type: ignore[arg-type]


# The losses and views.


def test_agreement_costs_nothing_and_the_target_gets_no_gradient() -> None:
    logits = torch.randn((6, 4), generator=torch.Generator().manual_seed(0), requires_grad=True)
    target = torch.randn((6, 4), generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.allclose(consistency_loss(logits, logits), torch.zeros(6), atol=1e-6)
    loss = consistency_loss(logits, target)
    assert (loss > 0).all()
    expected = torch.nn.functional.kl_div(
        logits.log_softmax(1), target.log_softmax(1), reduction="none", log_target=True
    ).sum(1)
    assert torch.allclose(loss, expected, atol=1e-6)
    loss.sum().backward()
    assert target.grad is None
    assert logits.grad is not None


@pytest.mark.parametrize("policy", ["autoaugment", "randaugment"])
def test_strong_views_are_strong_and_follow_the_dice(policy: str) -> None:
    images = torch.randint(0, 255, (20, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    torch.manual_seed(7)
    state = torch.get_rng_state()

    def view(seed: int, own: slice = slice(None)) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        columns = draw_strong(20, 32, generator, flip=True, prefix="strong")
        policies = draw_policies(20, own, generator)
        taken = {name: value[own] for name, value in columns.items()}
        return strong_augment(images[own], taken, policies, policy=policy, prefix="strong")

    views = [view(seed) for seed in (0, 0, 1)]
    for rank in range(3):  # a part of the batch gets what it gets as a part of the whole
        assert torch.equal(view(0, slice(rank, None, 3)), views[0][rank::3])
    assert torch.equal(torch.get_rng_state(), state)
    assert views[0].dtype == torch.uint8
    assert views[0].shape == images.shape
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])


def test_a_cutout_hides_about_a_quarter_at_most() -> None:
    images = torch.zeros((50, 3, 32, 32), dtype=torch.uint8)
    centre = torch.rand((2, 50), generator=torch.Generator().manual_seed(0))
    hidden = (cutout(images, centre) == 128).float().mean(dim=(1, 2, 3))
    assert hidden.max() <= 0.26
    assert float(hidden.mean()) > 0.1


# The recipe.


def made(**options: object) -> RetrainRecipe:
    chosen = RetrainOptions(**options)  # type: ignore[arg-type]
    return plans.plan_retraining(RECIPE, chosen, preset="auto", labelled=600, unlabelled=400, flip=True)


def test_weight_and_ratio_follow_the_sizes_and_never_a_rate() -> None:
    recipe = made()
    assert recipe.weight == pytest.approx(400 / 600)
    assert recipe.unlabelled_batch == round(16 * 400 / 600)
    assert (
        plans.plan_retraining(RECIPE, RetrainOptions(), preset="auto", labelled=10, unlabelled=90, flip=True).weight
        == 1
    )
    alone = plans.plan_retraining(RECIPE, RetrainOptions(), preset="auto", labelled=10, unlabelled=0, flip=True)
    assert (alone.weight, alone.unlabelled_batch) == (0, 0)
    assert made(weight=0.5, ratio=0.25).unlabelled_batch == 4


def test_many_rows_go_on_from_the_run_and_plain_ce_gets_the_scans_images_too() -> None:
    few, many = (
        plans.plan_retraining(RECIPE, RetrainOptions(), preset="auto", labelled=rows, unlabelled=100, flip=True)
        for rows in (400, 4000)
    )
    assert (few.start, few.lr) == ("scratch", RECIPE.lr)
    assert (many.start, many.epochs) == ("run", plans.CONTINUED_EPOCHS)
    assert many.lr == pytest.approx(RECIPE.lr / 2)
    plain = plans.without_consistency(many, kept=4000, rows=8000)
    assert (plain.start, plain.lr, plain.weight, plain.unlabelled_batch) == (many.start, many.lr, 0.0, 0)
    assert plain.epochs * (8000 // 16) == many.epochs * (4000 // 16)  # as many steps


def test_phase_two_is_the_authors_but_for_pretrained_networks() -> None:
    assert (made().labelled_view, made().target) == ("strong", "batch")
    assert made(target="ema").target == "ema"
    pretrained = replace(RECIPE, weights="imagenet")
    fine = plans.plan_retraining(pretrained, RetrainOptions(), preset="auto", labelled=600, unlabelled=400, flip=True)
    assert (fine.start, fine.labelled_view, fine.target) == ("run", "weak", "current")


def test_the_cifar_preset_has_a_second_phase_and_hands_over_an_early_division() -> None:
    paper = scan_plan(
        TrainingOptions(preset="cifar"), rows=50_000, classes=10, longest_sides=np.array([32]), device="cpu"
    )
    assert paper.divide_at == 40
    second = plans.plan_retraining(
        paper, RetrainOptions(), preset="cifar", labelled=30_000, unlabelled=20_000, flip=True
    )
    assert (second.epochs, second.batch_size, second.clip_norm) == (1600, 320, 5.0)
    assert (second.start, second.policy) == ("scratch", "autoaugment")
    short = scan_plan(
        TrainingOptions(preset="cifar", epochs=10), rows=50_000, classes=10, longest_sides=np.array([32]), device="cpu"
    )
    assert short.divide_at == 4


def test_clothing1m_draws_evenly_mixes_and_counts_its_batches() -> None:
    paper = scan_plan(
        TrainingOptions(preset="clothing1m"), rows=10**6, classes=14, longest_sides=np.array([224]), device="cpu"
    )
    assert (paper.balanced, paper.epoch_steps, paper.mixup > 0) == (True, 1000, True)
    off = scan_plan(
        TrainingOptions(preset="clothing1m", mixup=0.0, balanced=False, epoch_steps=5),
        rows=100,
        classes=2,
        longest_sides=np.array([224]),
        device="cpu",
    )
    assert (off.balanced, off.epoch_steps, off.mixup) == (False, 5, 0.0)


@pytest.mark.parametrize("options", [{"target": "x"}, {"start": "x"}, {"relabel": 2.0}, {"epochs": 0}, {"lr": -1.0}])
def test_options_without_a_meaning_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        RetrainOptions(**options)  # type: ignore[arg-type]


# The loop.


def data(**changes: object) -> RetrainData:
    learnt = training_data()
    parts = {"clean": torch.arange(6, 60), "corrupted": torch.arange(6)}
    return RetrainData(learnt.pixels, learnt.labels, classes=3, **{**parts, **changes})  # type: ignore[arg-type]


def teach(recipe: RetrainRecipe, learnt: RetrainData | None = None, **options: object) -> RetrainLoop:
    session = TrainingSession(stop=options.pop("stop", lambda: None))  # type: ignore[arg-type]
    chosen = {"test_set": None, "name": "retrain", "checkpoints": None, **options}
    return RetrainLoop(learnt or data(), recipe, session, **chosen)  # type: ignore[arg-type]


def weights(training: RetrainLoop) -> Tensor:
    return torch.cat([p.detach().flatten() for p in training.state.model.parameters()])


@pytest.mark.parametrize("target", ["current", "batch", "epoch-start", "ema"])
def test_every_target_trains_and_the_seed_says_the_rest(target: str) -> None:
    recipe = replace(made(epochs=2, target=target), unlabelled_batch=4)
    first, again = teach(recipe), teach(recipe)
    first.run(), again.run()
    assert torch.equal(weights(first), weights(again))
    assert all(row["consistency_loss"] > 0 for row in first.state.history)


@pytest.mark.parametrize(("view", "count"), [("weak", 4), ("strong", 16 + 4)])
def test_labelled_images_are_augmented_strongly_if_the_recipe_says_so(
    view: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def spy(images: Tensor, *values: Any, **options: Any) -> Tensor:
        seen.append(len(images))
        return strong_augment(images, *values, **options)

    monkeypatch.setattr("noisesieve.retrain.loop.strong_augment", spy)
    recipe = replace(made(epochs=1), unlabelled_batch=4, labelled_view=view)
    training = teach(recipe)
    training.run()
    assert sum(seen) == count * training.state.updates


def test_labels_of_corrupted_rows_have_no_say() -> None:
    recipe = replace(made(epochs=2), unlabelled_batch=4)
    other = data()
    labels = other.labels.clone()
    labels[:6] = (labels[:6] + 1) % 3
    first, second = teach(recipe), teach(recipe, replace(other, labels=labels))
    first.run(), second.run()
    assert torch.equal(weights(first), weights(second))


def test_rows_in_neither_set_take_no_part() -> None:
    recipe = replace(made(epochs=1), unlabelled_batch=4)
    images = data().pixels
    assert isinstance(images, Memory)
    changed = Memory(images.images.copy())
    changed.images[59] = 0
    parts = {"clean": torch.arange(6, 59), "statistics": ([120.0] * 3, [60.0] * 3)}
    first, second = teach(recipe, data(**parts)), teach(recipe, replace(data(**parts), pixels=changed))
    first.run(), second.run()
    assert torch.equal(weights(first), weights(second))


class Shelf:
    """Checkpoints in memory."""

    def __init__(self) -> None:
        self.kept: list[Checkpoint] = []

    def save(self, number: int, checkpoint: Checkpoint) -> None:
        tensors = {name: value.clone() for name, value in checkpoint.tensors.items()}
        self.kept.append(Checkpoint(tensors, json.loads(json.dumps(checkpoint.facts))))

    def latest(self, rows: int) -> Checkpoint | None:
        return self.kept[-1] if self.kept else None

    def wait(self) -> None:
        pass


@pytest.mark.parametrize("target", ["current", "batch", "epoch-start", "ema"])
def test_a_retraining_that_was_stopped_ends_in_the_same_bits(target: str) -> None:
    recipe, shelf, steps = replace(made(epochs=3, target=target), unlabelled_batch=4), Shelf(), []

    def stop() -> Stopped | None:
        steps.append(1)
        return Stopped("", exit_code=143) if len(steps) == 5 else None

    with pytest.raises(Stopped):
        teach(recipe, checkpoints=shelf, stop=stop).run()
    assert shelf.kept
    resumed, whole = teach(recipe, checkpoints=shelf), teach(recipe)
    resumed.run(), whole.run()
    assert torch.equal(weights(resumed), weights(whole))
    assert [row["train_loss"] for row in resumed.state.history] == [row["train_loss"] for row in whole.state.history]


def test_the_exam_is_taken_after_every_epoch() -> None:
    learnt = data()
    test_set = LabelledTestSet(learnt.pixels, learnt.labels)
    training = teach(made(epochs=2), test_set=test_set)
    assert [0 <= row.test_accuracy <= 1 for row in training.run().history] == [True, True]


# Mixup and balanced batches, in the scan's own loop.


def test_balanced_batches_are_balanced_whatever_the_classes_are() -> None:
    labels = torch.tensor([0] * 90 + [1] * 9 + [2])
    batches = balanced_batches(
        labels, torch.tensor([0, 1]), size=30, steps=50, generator=torch.Generator().manual_seed(0)
    )
    assert len(batches) == 50
    drawn = torch.cat(batches)
    assert not torch.isin(drawn, torch.tensor([0, 1])).any()
    shares = torch.bincount(labels[drawn]).double() / len(drawn)
    assert (shares - 1 / 3).abs().max() < 0.04


def test_mixing_keeps_the_mean_and_half_of_each_image() -> None:
    images = torch.randn((32, 3, 4, 4), generator=torch.Generator().manual_seed(0))
    for seed in range(5):
        partner, share = draw_mix(len(images), torch.Generator().manual_seed(seed), 4.0)
        assert 0.5 <= share <= 1
        mixed = share * images + (1 - share) * images[partner]
        assert torch.allclose(mixed.mean(dim=0), images.mean(dim=0), atol=1e-6)


def scanned(recipe: Recipe, images: Memory | None = None) -> Loop:
    learnt = training_data() if images is None else replace(training_data(), pixels=images)
    loop = Loop(learnt, recipe, TrainingSession(), checkpoints=None)
    loop.loader.mean, loop.loader.std = torch.full((3,), 120.0), torch.full((3,), 60.0)
    return loop


@pytest.mark.parametrize("balanced", [False, True])
def test_a_dropped_row_takes_no_part_in_a_mix(balanced: bool) -> None:
    recipe = replace(RECIPE, mixup=4.0, balanced=balanced)
    images = training_data().pixels
    assert isinstance(images, Memory)
    changed = Memory(images.images.copy())
    changed.images[:6] = 255
    loops = [scanned(recipe), scanned(recipe, changed)]
    for loop in loops:
        loop.state.keep[:6] = False
        loop.state.epoch = 4
        loop.train_epoch()
    first, second = (torch.cat([p.detach().flatten() for p in loop.state.model.parameters()]) for loop in loops)
    assert torch.equal(first, second)


def test_the_prior_is_the_samplers() -> None:
    assert torch.allclose(scanned(replace(RECIPE, balanced=True)).prior, torch.full((3,), 1 / 3, dtype=torch.float64))


def test_an_epoch_has_as_many_batches_as_asked_for() -> None:
    loop = scanned(replace(RECIPE, balanced=True, epoch_steps=7))
    assert len(loop.epoch_batches()) == 7
    _, scores = loop.run()
    assert {row.steps for row in scores.history} == {7}


# Through the run folder.


def test_roles_follow_verdicts_waivers_decisions_and_suggestions(home: Path, tmp_path: Path) -> None:
    report = ns.read_report(home / "run")
    ids = report.table["id"].to_pylist()
    plain = assign_roles(report, settings(home, tmp_path), home / "data")
    assert plain.counts.corrupted == int((report.verdicts == "corrupted").sum()) >= 6
    assert plain.role[ids.index("green/broken.png")] == UNUSED
    assert plain.role[ids.index("red/wrong0.png")] == UNLABELLED
    (tmp_path / "d.csv").write_text(
        "path,decision,label\nred/wrong0.png,accept,blue\nred/wrong1.png,keep,red\nred/wrong2.png,unusable,\n"
        "red/0.png,relabel,green\n"
    )
    decided = assign_roles(report, settings(home, tmp_path, decisions=(tmp_path / "d.csv",)), home / "data")
    decided_rows = {name: (int(decided.role[ids.index(name)]), decided.labels[ids.index(name)]) for name in ids}
    assert decided_rows["red/wrong0.png"] == (LABELLED, "blue")
    assert decided_rows["red/wrong1.png"] == (LABELLED, "red")
    assert decided_rows["red/wrong2.png"][0] == UNUSED
    assert decided_rows["red/0.png"] == (LABELLED, "green")
    anew = assign_roles(report, settings(home, tmp_path, relabel=0.5), home / "data")
    assert anew.counts.relabelled >= 5
    assert anew.labels[ids.index("red/wrong3.png")] == "blue"


def test_retrain_writes_a_model_that_check_takes(inside: Run, home: Path, tmp_path: Path) -> None:
    words = (home / "run", "-o", "out", "--test", home / "test", *QUICK)
    done = inside("retrain", *words)
    assert done.returncode == 0, done.stderr
    assert "on 24 test images" in done.stdout
    assert re.search(r"5 trainings, at most [0-9,]+ images in all: about \S+ \S+ at\s+the\s+scan's speed", done.stderr)
    found = json.loads(Path("out/retrain.json").read_text())
    validate(found, "retrain")
    validate(json.loads(Path("out/model.json").read_text()), "model")
    rows = {row["name"]: row for row in found["candidates"]}
    assert list(rows) == [SCAN, ALL, KEPT, SUGGESTED, CONSISTENT]
    assert rows[SCAN]["agreement"] is None  # it was trained on every label
    assert rows[found["chosen"]]["agreement"] == max(row["agreement"] or 0 for row in found["candidates"])
    assert 10 < found["compared_on"] < 30
    assert rows[ALL]["rows"] + found["compared_on"] == 96
    assert found["saved_accuracy"] > 0.6
    assert list(found["accuracy"]["epochs"]) == [ALL, KEPT, SUGGESTED, CONSISTENT, "saved"]
    history = pq.read_table("out/history.parquet").to_pylist()
    assert {row["phase"] for row in history} == set(found["accuracy"]["epochs"])
    assert ElementTree.fromstring(Path("out/curves.svg").read_text()).tag.endswith("svg")
    assert inside("check", home / "test", "--model", "out", "--max-corrupted", "40%").returncode == 0
    again = inside("retrain", *words, "--json")
    assert "finished already" in again.stderr
    assert json.loads(again.stdout) == found
    other = inside("retrain", *words, "--lr", "0.01")
    assert other.returncode == 5
    assert "lr" in other.stderr
    assert not Path("out/checkpoint").exists()
    assert inside("retrain", home / "run", "-o", home / "run", "--force", *QUICK).returncode == 4


def test_a_stopped_retraining_resumes_to_the_same_model(home: Path, tmp_path: Path) -> None:
    class Impatient(NullWatcher):
        asked = False

        def stage(self, name: str, total: int) -> None:
            self.name = name

        def advance(self, done: int = 1, **facts: object) -> None:
            self.asked = self.asked or (self.name == SUGGESTED and facts.get("epoch") == 2)

    watcher = Impatient()
    chosen = settings(home, tmp_path / "a", test=TestSettings(home / "test"))
    with pytest.raises(Stopped):
        retrain(chosen, session=Session(watcher, lambda: Stopped("", exit_code=143) if watcher.asked else None))
    assert not (tmp_path / "a/retrain.json").exists()
    retrain(chosen)
    retrain(replace(chosen, output=tmp_path / "b"))
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_a_changed_image_is_refused(inside: Run, home: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(home / "data", tmp_path / "moved")
    paint(tmp_path / "moved/red/0.png", COLOURS["green"], seed=1)
    done = inside("retrain", home / "run", "-o", "out", "--data", tmp_path / "moved", *QUICK)
    assert done.returncode == 5
    assert "red/0.png" in done.stderr


def test_scan_and_retrain_in_one_command(inside: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisesieve.retrain.retrain_plan.LEAST_STEPS", 3)
    monkeypatch.setattr("noisesieve.retrain.retrain_plan.MOST_EPOCHS", 3)
    words = ("--retrain", "--no-review", "--weights", "none", "--epochs", "4", "--no-flip", "--limit", "60")
    done = inside("scan", home / "data", "-o", "run", *words)
    assert done.returncode == 0, done.stderr
    assert Path("run/report.parquet").exists()
    assert Path("run-retrained/model.safetensors").exists()


def test_the_papers_first_phase_hands_its_division_to_the_second(inside: Run, home: Path) -> None:
    words = ("--preset", "cifar", "--backbone", "resnet8", "--epochs", "5", "--limit", "45", "--no-review")
    done = inside("scan", home / "data", "-o", "run", *words)
    assert done.returncode == 0, done.stderr
    kept = pq.read_table("run/division.parquet")["clean"].to_pylist()
    done = inside("retrain", "run", "-o", "out", "--epochs", "2", "--candidates", "consistency", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["compared_on"], found["chosen"]) == (0, CONSISTENT)  # one alone: nothing is held out
    assert found["candidates"][1]["rows"] == found["rows"]["clean"] == sum(kept)
    assert found["recipe"]["batch_size"] == min(320, sum(kept))


def test_clothing1m_runs_on_small_data(inside: Run, home: Path) -> None:
    words = ("--preset", "clothing1m", "--backbone", "resnet8", "--image-size", "16", "--epochs", "3")
    done = inside("scan", home / "data", "-o", "run", "--epoch-steps", "4", "--limit", "40", "--no-review", *words)
    assert done.returncode == 0, done.stderr
    assert re.search(r"mixup 4, balanced,\s4 batches per epoch", done.stderr)


def test_a_frozen_run_is_fine_tuned_from_its_own_weights(inside: Run, tmp_path: Path) -> None:
    for c, (name, colour) in enumerate(COLOURS.items()):
        for i in range(8):
            paint(tmp_path / "photos" / name / f"{i}.png", colour, seed=100 * c + i, size=(64, 64))
    words = ("--weights", "lite0", "--freeze", "--image-size", "64", "--no-review")
    assert inside("scan", tmp_path / "photos", "-o", "run", *words).returncode == 0
    done = inside(
        *("retrain", "run", "--no-freeze", "-o", "out", "--test", tmp_path / "photos", "--epochs", "1", "--json"),
        *("--candidates", "kept"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["recipe"]["start"] == "run"
    assert found["saved_accuracy"] > 0.9
    assert json.loads(Path("out/model.json").read_text())["frozen"] is None
    assert inside("check", tmp_path / "photos", "--model", "out").returncode == 0


@pytest.mark.slow
def test_two_processes_scan_and_retrain_in_one_command(home: Path, tmp_path: Path) -> None:
    few_steps = "from noisesieve.retrain import retrain_plan as plan; plan.LEAST_STEPS = plan.MOST_EPOCHS = 3"
    (tmp_path / "start.py").write_text(f"{few_steps}\nfrom noisesieve.cli import main; main()\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "start.py"]
    options = ("--retrain", "--no-review", "--weights", "none", "--epochs", "6", "--no-flip", "--json")
    environment = {"PYTHONPATH": str(REPOSITORY), "NOISESIEVE_CACHE_DIR": str(home / "cache"), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [*torchrun, "scan", str(home / "data"), "-o", "run", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **environment},
    )
    assert found.returncode == 0, found.stderr
    validate(json.loads(found.stdout), "scan")
    assert (tmp_path / "run-retrained/model.safetensors").exists()


def test_the_ablation_is_a_table_of_five(inside: Run, home: Path) -> None:
    words = ("--ablation", "--test", home / "test", "--epochs", "5", "--warmup-epochs", "2", "--no-flip")
    done = inside("bench", home / "data", *words, "-o", "a.json", "--markdown", "a.md")
    assert done.returncode == 0, done.stderr
    document = json.loads(Path("a.json").read_text())
    validate(document, "ablation")
    assert [row["method"] for row in document["methods"]] == [
        "cross-entropy",
        "sieve without regularizer",
        "sieve with entropy instead",
        "sieve with regularizer",
        "with consistency",
    ]
    assert "with consistency" in done.stdout
    assert Path("a.md").read_text().count("\n|") >= 6
    assert inside("bench", home / "data", "--ablation").returncode == 2
