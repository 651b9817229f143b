"""Schedules, presets, augmentation, backbones, devices: the parts of training, one fact each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from noisesieve.core.errors import OutputError, StateError, UsageError
from noisesieve.learn import cost, device, distributed, warmup
from noisesieve.learn.augment import draw, mirror, pad_crop
from noisesieve.learn.checkpoint import Checkpoint, Checkpoints
from noisesieve.learn.networks.backbones import BACKBONES, build
from noisesieve.learn.plan import fit_beta, image_size, plan
from noisesieve.learn.recipes import NetworkRecipe, Recipe
from noisesieve.learn.schedule import Schedule
from noisesieve.learn.training_settings import TrainingOptions

SIDES = np.array([32] * 10)


def recipe(rows: int = 5000, sides: np.ndarray = SIDES, device: str = "cpu", **options: object) -> Recipe:
    wanted = TrainingOptions(**{"weights": "none", **options})  # type: ignore[arg-type]
    return plan(wanted, rows=rows, classes=10, longest_sides=sides, device=device)


@pytest.mark.parametrize(
    ("options", "counts", "beta", "says"),
    [
        ({}, [100] * 10, 2.0, None),
        ({}, [252, 249, 249, 250], 2.0, None),  # 1.98 is 2 in two digits
        ({}, [900, 100], 0.56, "Class 'a' has 90% of the labels: beta is lowered from 2 to 0.56"),
        ({}, [50, 50], 1.0, "beta is lowered from 2 to 1"),
        ({"beta": 2.0}, [900, 100], 2.0, "more than 1 / beta"),
        ({"preset": "paper"}, [900, 100], 2.0, "more than 1 / beta"),
        ({"preset": "cifar"}, [51, 49], 2.0, "more than 1 / beta"),
        ({"preset": "cifar"}, [49, 49, 2], 2.0, None),
        ({"preset": "clothing1m"}, [98, 2], 0.4, None),
        ({"balanced": True}, [98, 2], 1.0, "Every class counts 50%"),
        ({"weights": None}, [98, 2], 2.0, None),  # heads choose from the data
    ],
)
def test_a_large_class_lowers_beta_or_is_warned_about(
    options: dict[str, object], counts: list[int], beta: float, says: str | None
) -> None:
    fitted, said = fit_beta(recipe(**options), np.array(counts), list("abcdefghij")[: len(counts)])
    assert fitted.beta == pytest.approx(beta)
    assert said is None if says is None else says in str(said)


def test_the_cifar_preset_is_the_papers() -> None:
    paper = recipe(preset="cifar")
    line = Schedule(paper, paper.warmup_epochs)
    assert (paper.backbone, paper.batch_size, paper.epochs, paper.loop_eps, paper.sieve_eps) == (
        "resnet34",
        64,
        100,
        1e-8,
        1e-8,
    )
    assert [line.beta(epoch) for epoch in (1, 10, 25, 40, 100)] == [0, 0, 1, 2, 2]
    assert [line.learning_rate(epoch, 0) for epoch in (1, 50, 51)] == pytest.approx([0.1, 0.1, 0.01])
    assert line.sieve_start == 30
    assert not line.scores_after(28)
    assert line.scores_after(29)


def test_the_clothing1m_preset_is_the_papers() -> None:
    paper = recipe(preset="clothing1m")
    line = Schedule(paper, paper.warmup_epochs)
    assert (paper.backbone, paper.batch_size, paper.epochs, paper.lr) == ("resnet50", 32, 120, 0.01)
    assert [line.beta(epoch) for epoch in (80, 90, 100, 120)] == pytest.approx([0, 0.2, 0.4, 0.4])
    assert [line.learning_rate(epoch, 0) for epoch in (30, 31, 61, 91)] == pytest.approx([1e-2, 1e-3, 1e-4, 1e-5])


def test_a_warm_up_that_ends_early_moves_everything_behind_it() -> None:
    auto = recipe()
    full, short = Schedule(auto, auto.warmup_epochs), Schedule(auto, auto.warmup_epochs - 5)
    assert full.epochs - short.epochs == full.sieve_start - short.sieve_start == 5
    assert short.beta(short.snapshot_epoch) == 0 < short.beta(short.snapshot_epoch + 1)


def test_the_rate_falls_once_beta_rises_and_ends_near_zero() -> None:
    line = Schedule(recipe(), 10)
    assert line.learning_rate(10, 0.9) == line.recipe.lr
    assert line.learning_rate(line.epochs, 0.99) < 0.05 * line.recipe.lr


def test_plain_cross_entropy_settles_before_beta_rises_and_the_rate_starts_anew() -> None:
    line = Schedule(recipe(), 10)
    assert line.recipe.settle_epochs > 0
    assert {line.phase(epoch) for epoch in range(11, line.snapshot_epoch + 1)} == {"settle"}
    assert line.beta(line.snapshot_epoch) == 0 < line.beta(line.snapshot_epoch + 1)
    assert line.learning_rate(line.snapshot_epoch, 0.99) < 0.1 * line.recipe.lr
    assert line.learning_rate(line.snapshot_epoch + 1, 0) == line.recipe.lr
    assert recipe(sieve_eps=1e-8).settle_epochs == 0  # the paper's rule
    assert recipe(preset="cifar").settle_epochs == recipe(preset="clothing1m").settle_epochs == 0


def test_the_preset_paper_is_the_papers_rule_with_the_lengths_of_auto() -> None:
    auto, paper = recipe(), recipe(preset="paper")
    changed = {name for name, value in vars(paper).items() if value != vars(auto)[name]}
    assert changed == {
        *("settle_epochs", "ema_epochs", "average_epochs", "loop_eps", "adaptive_eps", "sieve_eps"),
        *("adaptive_beta", "decay_biases", "exact_label"),
    }
    assert (paper.settle_epochs, paper.ema_epochs, paper.average_epochs) == (0, 0, 1)
    assert paper.loop_eps == paper.sieve_eps == 1e-8
    photos = np.array([500] * 100)
    frozen = plan(TrainingOptions(preset="paper"), rows=3000, classes=10, longest_sides=photos, device="cpu")
    assert not frozen.frozen


def test_options_override_the_preset() -> None:
    asked = recipe(epochs=20, warmup_epochs=5, ramp_epochs=4, sieve_start=8, beta=1.0, batch_size=32, lr=0.2)
    assert (asked.epochs, asked.warmup_epochs, asked.ramp_epochs, asked.sieve_start) == (20, 5, 4, 8)
    assert (asked.beta, asked.batch_size, asked.lr) == (1.0, 32, 0.2)
    assert not asked.adaptive_warmup
    shorter = recipe(epochs=10)
    assert shorter.warmup_epochs < 10
    assert shorter.sieve_start <= 10


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 5, "warmup_epochs": 5},
        {"sieve_start": 999},
        {"warmup_epochs": 0},
        {"warmup_epochs": 5, "sieve_start": 8, "settle_epochs": 5},
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        recipe(**options)


@pytest.mark.parametrize(("side", "size"), [(8, 16), (16, 16), (28, 32), (32, 32), (4000, 32)])
def test_the_size_follows_the_images(side: int, size: int) -> None:
    assert image_size(TrainingOptions(weights="none"), longest_sides=np.array([side] * 3), device="cpu") == size


def test_few_rows_get_more_epochs() -> None:
    assert recipe(rows=300).epochs > recipe(rows=8000).epochs


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_gives_logits_at_small_and_large_sizes(name: str) -> None:
    for size in (16, 72) if name in ("resnet8", "resnet20", "resnet18") else (16,):
        model = build(name, classes=4, image_size=size, seed=0).eval()
        with torch.inference_mode():
            assert model(torch.zeros(2, 3, size, size)).shape == (2, 4)


def test_a_backbone_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, again, other = (build("resnet8", classes=3, image_size=16, seed=s).state_dict() for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


def test_the_head_stays_in_float32_under_autocast() -> None:
    model = build("resnet8", classes=3, image_size=16, seed=0)
    seen: list[torch.dtype] = []
    model.stem.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(torch.zeros(2, 3, 16, 16))
    assert logits.dtype == torch.float32
    assert seen == [torch.bfloat16]


def test_crops_move_images_and_flips_mirror_half_of_them() -> None:
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(200, 3, 1, 1)
    draws = draw(200, 16, torch.Generator().manual_seed(0), flip=True)
    cropped = pad_crop(images, draws.shift)
    assert cropped.shape == images.shape
    assert cropped.dtype == torch.uint8
    centres = {int(image[0, 8, 8]) for image in cropped}
    assert centres == {16 * (8 + dy) + 8 + dx for dy in (-2, -1, 0, 1, 2) for dx in (-2, -1, 0, 1, 2)}
    flipped = mirror(images, draws.mirrored)
    broadcast = (flipped != images).flatten(1).any(1).float().mean()
    assert 0.35 < broadcast < 0.65


def test_the_held_out_part_spares_rare_classes() -> None:
    labels = torch.tensor([0] * 500 + [1] * 500 + [2] * 9)
    rows = warmup.held_out_rows(labels, seed=0)
    assert torch.bincount(labels[rows], minlength=3).tolist() == [50, 50, 0]
    assert len(warmup.held_out_rows(labels[:100], seed=0)) == 0


def test_the_warm_up_ends_when_agreement_stops_rising() -> None:
    rising = [i / 40 for i in range(20)]
    assert not warmup.has_levelled_off(rising)
    assert warmup.has_levelled_off(rising + [rising[-1]] * 8)
    assert not warmup.has_levelled_off([0.5] * 3)


def test_flips_are_refused_where_mirrored_images_lose() -> None:
    right = torch.ones(400, dtype=torch.bool)
    some_lost, half_lost = right.clone(), right.clone()
    some_lost[:2] = False
    half_lost[:200] = False
    assert warmup.flipping_is_harmless(right, some_lost)
    assert not warmup.flipping_is_harmless(right, half_lost)


def test_auto_takes_cuda_then_mps_then_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert device.choose_device("auto").type == expected
    with pytest.raises(UsageError, match="no CUDA device"):
        device.require_device("cuda")
    device.require_device("cpu")


@pytest.mark.parametrize(
    ("capability", "dtype", "scales"), [((9, 0), torch.bfloat16, False), ((7, 5), torch.float16, True)]
)
def test_gpus_compute_in_the_half_precision_they_have(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype, scales: bool
) -> None:
    asked: list[bool] = []

    class Scaler:
        def __init__(self, device: str, enabled: bool) -> None:
            asked.append(enabled)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.amp, "GradScaler", Scaler)
    made = device.Precision(torch.device("cuda"))
    assert made.dtype == dtype
    assert asked == [scales]


def test_the_cpu_computes_in_float32() -> None:
    assert device.Precision(torch.device("cpu")).dtype == torch.float32


def saved(folder: Path, numbers: tuple[int, ...]) -> tuple[Checkpoints, list[str]]:
    warnings: list[str] = []
    checkpoints = Checkpoints(folder, identity="x", warn=warnings.append)
    for number in numbers:
        checkpoints.save(number, Checkpoint({"a": torch.tensor([float(number)])}, {"number": number}))
    checkpoints.wait()
    return checkpoints, warnings


def test_the_two_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints, _ = saved(tmp_path, (1, 2, 3))
    assert len(list(tmp_path.glob("*.ckpt"))) == 2
    found = checkpoints.latest(0)
    assert found is not None
    assert found.facts["number"] == 3


@pytest.mark.parametrize("damage", ["bit", "truncated", "pickle"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    checkpoints, warnings = saved(tmp_path, (1, 2))
    newest = sorted(tmp_path.glob("*.ckpt"))[-1]
    content = bytearray(newest.read_bytes())
    if damage == "bit":
        content[len(content) // 2] ^= 1
    newest.write_bytes({"bit": bytes(content), "truncated": bytes(content[:-9]), "pickle": b"\x80\x04N."}[damage])
    found = checkpoints.latest(0)
    assert found is not None
    assert found.facts["number"] == 1
    assert newest.name in warnings[0]
    sorted(tmp_path.glob("*.ckpt"))[0].write_bytes(b"")
    with pytest.raises(StateError, match="every checkpoint is damaged"):
        checkpoints.latest(0)


def test_a_checkpoint_of_another_run_is_not_ours(tmp_path: Path) -> None:
    saved(tmp_path, (1,))
    with pytest.raises(StateError, match="another recipe"):
        Checkpoints(tmp_path, identity="y", warn=lambda text: None).latest(0)


def test_batch_norm_is_averaged_over_ranks_only_where_torch_cannot_sync_it() -> None:
    norm = nn.BatchNorm2d(3)
    distributed.Processes().mean_([norm.running_mean])  # type: ignore[list-item]
    assert torch.equal(norm.running_mean, torch.zeros(3))  # type: ignore[arg-type]


@pytest.mark.parametrize(("wanted", "backend", "device"), [("cuda", None, "cuda:1"), ("cpu", "gloo", "cpu")])
def test_a_rank_takes_its_own_gpu_and_the_backend_that_fits(
    monkeypatch: pytest.MonkeyPatch, wanted: str, backend: str, device: str
) -> None:
    chosen: list[object] = []
    monkeypatch.setattr(distributed.dist, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(distributed.dist, "get_node_local_rank", lambda: 1)
    monkeypatch.setattr(distributed.dist, "init_process_group", lambda name, timeout: chosen.append(name))
    monkeypatch.setattr(distributed.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    joined = distributed.Processes.join(wanted)
    assert str(joined.device) == device
    assert chosen[-1] == backend
    assert not joined.is_leader


def test_flips_wait_until_the_model_knows_something() -> None:
    labels = torch.arange(400) % 10
    assert not warmup.beats_chance(torch.rand(400, 10, generator=torch.Generator().manual_seed(0)), labels)
    assert warmup.beats_chance(torch.eye(10)[labels], labels)


def test_the_sieve_is_gentle_where_opinions_differ() -> None:
    from noisesieve.sieve.calibrate import expected_precision, loop_eps_from_disagreement

    assert loop_eps_from_disagreement(0.02, 1e-3) == pytest.approx(1e-3)
    assert loop_eps_from_disagreement(0.3, 1e-3) == pytest.approx(1e-8)
    steps = [
        loop_eps_from_disagreement(suspect_disagreement, 1e-3) for suspect_disagreement in (0.1, 0.12, 0.15, 0.18, 0.2)
    ]
    assert steps == sorted(steps, reverse=True)
    assert recipe().adaptive_eps
    assert not recipe(loop_eps=1e-3).adaptive_eps  # what the user asked for stands
    assert not recipe(preset="cifar").adaptive_eps
    chances = [expected_precision(suspect_disagreement) for suspect_disagreement in (0.0, 0.05, 0.1, 0.2, 0.5)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] == 1
    assert chances[-1] == pytest.approx(0.5)


def test_the_estimate_counts_steps_processes_and_what_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_fastest", lambda work: 1.0)
    one, two = distributed.Processes(), distributed.Processes(size=2)
    whole = recipe(rows=64_000, flip=False)
    short = recipe(rows=64_000, flip=False, epoch_steps=10)

    def seconds(of: Recipe, processes: distributed.Processes = one, **options: float) -> float:
        return cost.estimate(of, rows=64_000, classes=10, processes=processes, **options).seconds

    assert isinstance(whole, NetworkRecipe)
    assert isinstance(short, NetworkRecipe)
    saved = (whole.epochs * 64_000 - short.epochs * 10 * short.batch_size) / 64
    assert whole.epochs == short.epochs
    assert seconds(whole) - seconds(short) == pytest.approx(saved)
    assert seconds(whole, two) == pytest.approx(seconds(whole) / 2)
    heads = recipe(rows=64_000, sides=np.array([128]), weights="lite0", freeze=True)
    assert seconds(heads, cached_features=0.75) == pytest.approx(seconds(heads) / 4)
    assert seconds(heads, cached_features=1.0) == 0


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("readers", [1, 2, 5])
def test_each_rank_gets_its_part_of_the_sums_however_many_wrote_them(tmp_path: Path, ranks: int, readers: int) -> None:
    rows = 11
    whole = torch.arange(rows * 3, dtype=torch.float32).view(rows, 3)
    for rank in range(ranks):
        store = Checkpoints(tmp_path, identity="x", warn=print, rank=rank, ranks=ranks)
        part = whole.tensor_split(ranks)[rank]
        store.save(4, Checkpoint({"a": torch.ones(2)}, {"epoch": 2}, {"prob_sum": part}))
        store.wait()
    read = [Checkpoints(tmp_path, identity="x", warn=print, rank=r, ranks=readers).latest(rows) for r in range(readers)]
    assert all(found is not None and found.facts == {"epoch": 2} for found in read)
    assert torch.equal(torch.cat([found.parts["prob_sum"] for found in read if found is not None]), whole)


def test_a_checkpoint_without_one_ranks_part_is_passed_over(tmp_path: Path) -> None:
    for number in (2, 4):
        for rank in range(2):
            store = Checkpoints(tmp_path, identity="x", warn=print, rank=rank, ranks=2)
            store.save(number, Checkpoint({}, {"number": number}, {"prob_sum": torch.ones((2, 2))}))
            store.wait()
    (tmp_path / "00000004.1-of-2.part").unlink()
    warnings: list[str] = []
    found = Checkpoints(tmp_path, identity="x", warn=warnings.append, rank=0, ranks=2).latest(4)
    assert found is not None
    assert found.facts["number"] == 2
    assert len(warnings) == 1


def test_an_error_of_the_writing_thread_reaches_the_training(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a file where the folder should be")
    store = Checkpoints(tmp_path / "x", identity="x", warn=print)
    store.save(1, Checkpoint({}, {}))
    with pytest.raises(OutputError):
        store.wait()
