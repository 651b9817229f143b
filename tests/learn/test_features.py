"""What a frozen network sees: depths of one forward pass, stored in chunks that survive kills and flipped bits."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d

from noisesieve.core import row_store
from noisesieve.core.columns import Hashes
from noisesieve.learn.describe import describe_loss, introduce
from noisesieve.learn.distributed import TrainingSession
from noisesieve.learn.evidence import LossEvidence
from noisesieve.learn.frozen.choose import (
    LOOP_FLOORS,
    LOSSES,
    agreements,
    best_loss,
    choose_depths,
    choose_loss,
    fewer_classes,
    predict_out_of_fold,
)
from noisesieve.learn.frozen.features import DepthFile, Features
from noisesieve.learn.frozen.head_data import HeadData, Projected
from noisesieve.learn.frozen.heads import Heads
from noisesieve.learn.frozen.projection import Projection
from noisesieve.learn.networks import lite
from noisesieve.learn.networks.backbones import BACKBONES, build, depths_of
from noisesieve.learn.networks.depths import Depth
from noisesieve.learn.networks.pretrained import load_backbone
from noisesieve.learn.plan import plan
from noisesieve.learn.presets import frozen
from noisesieve.learn.recipes import HeadRecipe
from noisesieve.learn.training_settings import TrainingOptions
from noisesieve.sieve.decide import choose_floor, decide
from noisesieve.sieve.formulas import margin

# Networks.


@pytest.mark.parametrize(("side", "grid"), [(8, 4), (10, 4), (7, 4), (2, 4), (5, 1)])
def test_pooling_is_torchs_adaptive_pooling_and_differentiable(side: int, grid: int) -> None:
    maps = torch.randn(2, 3, side, side + 1, dtype=torch.float64, requires_grad=True)
    ours = Depth("x", 3, grid).pool(maps)
    assert torch.allclose(ours, adaptive_avg_pool2d(maps, grid).flatten(1), atol=1e-12)
    ours.sum().backward()
    assert maps.grad is not None


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet50", "lite0"])
def test_every_depth_has_the_width_it_states(name: str) -> None:
    depths = tuple(depth.name for depth in depths_of(name))
    network = build(name, classes=3, image_size=96, seed=0, depths=depths).eval()
    with torch.inference_mode():
        seen = network.depth_features(torch.zeros(2, 3, 96, 96))
        assert network.features(torch.zeros(2, 3, 96, 96)).shape == (2, network.fc.in_features)
    assert {depth.name: depth.width for depth in BACKBONES[name].depths} == {k: v.shape[1] for k, v in seen.items()}


@pytest.mark.parametrize("side", [97, 128, 160])
def test_the_registrys_weights_fit_timms_lite0_strictly_and_fusing_changes_nothing(side: int) -> None:
    network = build("lite0", classes=2, image_size=side, seed=0, depths=("last", "middle"))
    load_backbone(network, lite.lite_weights())
    stored = torch.load(lite.lite_weights(), map_location="cpu", weights_only=True)
    renamed = lite.with_timm_names(stored)
    assert len(renamed) == len(stored)
    own = {name.removeprefix("body."): value for name, value in network.state_dict().items() if "fc." not in name}
    assert own.keys() == {name for name in renamed if not name.startswith("classifier.")}
    assert all(torch.equal(value, renamed[name]) for name, value in own.items())
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        plain = network.eval().features(images)
        network.fuse()
        assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
        assert torch.allclose(network.features(images), plain, atol=1e-3)


def test_names_of_other_files_are_left_alone() -> None:
    assert list(lite.with_timm_names({"conv1.weight": torch.zeros(1)})) == ["conv1.weight"]
    old = {
        "body._conv_stem.weight": torch.zeros(1),
        "body._blocks.3._bn0.bias": torch.zeros(1),
        "fc.bias": torch.ones(1),
    }
    assert list(lite.with_timm_names(old)) == ["body.conv_stem.weight", "body.blocks.2.0.bn1.bias", "fc.bias"]


# The store.


def rows(count: int, first: int = 0) -> tuple[list[str], np.ndarray]:
    values = np.random.default_rng(first).normal(size=(count, 2, 3)).astype(np.float16)
    return [hashlib.sha256(b"%d" % (first + i)).hexdigest() for i in range(count)], values


def opened(folder: Path) -> DepthFile:
    return DepthFile(folder, "last", views=2, width=3)


def test_chunks_are_found_again_by_content(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (a, first), (b, second) = rows(5), rows(3, first=5)
    store.append(a, first)
    store.append(b, second)
    again = opened(tmp_path)
    assert again.missing(Hashes([*a, *b, "f" * 64])).tolist() == [False] * 8 + [True]
    assert np.array_equal(again.open()[again.slots(Hashes([b[1], a[4]]))], np.stack((second[1], first[4])))
    assert again.drop_damaged(Hashes([*a, *b])) == 0


@pytest.mark.parametrize("left", ["data", "line"])
def test_a_kill_loses_the_chunk_that_was_being_written_and_no_other(tmp_path: Path, left: str) -> None:
    (a, first), (b, second) = rows(5), rows(3, first=5)
    opened(tmp_path).append(a, first)
    if left == "data":
        with (tmp_path / "last.f16").open("ab") as file:
            file.write(b"half a row")
    else:
        with (tmp_path / "last.chunks").open("ab") as file:
            file.write(b'{"first": 5, "contents": ["')
    store = opened(tmp_path)
    assert store.missing(Hashes([*a, *b])).tolist() == [False] * 5 + [True] * 3
    store.append(b, second)
    again = opened(tmp_path)
    assert np.array_equal(again.open()[again.slots(Hashes([*a, *b]))], np.concatenate((first, second)))
    assert again.drop_damaged(Hashes([*a, *b])) == 0


@pytest.mark.parametrize("where", ["last.f16", "last.chunks"])
def test_a_flipped_bit_costs_its_chunk_and_no_other(tmp_path: Path, where: str) -> None:
    chunks = [rows(4, first=4 * i) for i in range(3)]
    for contents, values in chunks:
        opened(tmp_path).append(contents, values)
    content = bytearray((tmp_path / where).read_bytes())
    content[len(content) // 2] ^= 4
    (tmp_path / where).write_bytes(content)
    store, names = opened(tmp_path), [name for contents, _ in chunks for name in contents]
    wanted = Hashes(names)
    store.drop_damaged(wanted)
    lost = {name for name, gone in zip(names, store.missing(wanted).tolist(), strict=True) if gone}
    assert 0 < len(lost) <= 4
    for contents, values in chunks:
        if lost & set(contents):
            store.append(contents, values)
    again = opened(tmp_path)
    assert again.drop_damaged(wanted) == 0 or where == "last.chunks"
    assert np.array_equal(again.open()[again.slots(wanted)], np.concatenate([values for _, values in chunks]))


def test_two_processes_may_append_in_turns(tmp_path: Path) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    (a, first), (b, second), (c, third) = rows(2), rows(2, first=2), rows(2, first=4)
    one.append(a, first)
    two.append(b, second)
    one.append(c, third)
    again = opened(tmp_path)
    assert np.array_equal(again.open()[again.slots(Hashes([*a, *b, *c]))], np.concatenate((first, second, third)))


def test_nonsense_in_the_index_is_passed_over(tmp_path: Path) -> None:
    contents, values = rows(2)
    opened(tmp_path).append(contents, values)
    with (tmp_path / "last.chunks").open("ab") as file:
        for line in ("null", "[" * 100_000, '{"first": -1, "contents": ["x"], "crc32": 0}', "\xff"):
            file.write(line.encode("latin1") + b"\n")
        huge = {"first": 10**12, "contents": ["y"], "crc32": 0}
        file.write(json.dumps(huge).encode() + b"\n")
    assert opened(tmp_path).missing(Hashes([*contents, "e" * 64])).tolist() == [False, False, True]


def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[DepthFile, Hashes, np.ndarray]:
    """Rows in several chunks, with their sorted index."""
    monkeypatch.setattr(row_store, "WORTH_AN_INDEX", 1)
    contents, values = rows(300)
    store = opened(tmp_path)
    for start in range(0, 300, 100):
        store.append(contents[start : start + 100], values[start : start + 100])
    store.write_sorted_index()
    return store, Hashes(contents), values


def test_the_sorted_index_finds_the_same_rows_and_reads_only_lines_that_came_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wanted, values = many(tmp_path, monkeypatch)
    later, more = rows(5, first=900)
    opened(tmp_path).append(later, more)
    parsed: list[bytes] = []
    plain = row_store._read_line
    monkeypatch.setattr(row_store, "_read_line", lambda line: (parsed.append(line), plain(line))[1])
    again = opened(tmp_path)
    assert len(parsed) == 1
    assert np.array_equal(again.open()[again.slots(wanted)], values)
    assert np.array_equal(again.open()[again.slots(Hashes(later))], more)
    assert again.drop_damaged(wanted) == 0


@pytest.mark.parametrize("damage", ["truncated", "flipped", "other cache", "places", "nonsense", "gone"])
def test_a_sorted_index_that_is_wrong_leads_nobody_to_another_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    _, wanted, values = many(tmp_path, monkeypatch)
    file = tmp_path / "last.sorted"
    content = bytearray(file.read_bytes())
    head = content.index(b"\n") + 1
    places = head + 300 * row_store.KEY_BYTES
    if damage == "flipped":
        content[head + 5] ^= 8
    if damage == "places":  # every content at the place of its neighbour
        content[places : places + 300 * 8] = content[places + 8 : places + 300 * 8] + content[places : places + 8]
    if damage == "other cache":
        lines = (tmp_path / "last.chunks").read_bytes().splitlines(keepends=True)
        (tmp_path / "last.chunks").write_bytes(b"".join(lines[:2]))
    file.write_bytes({"truncated": content[:-3], "nonsense": b"[" * 10**5}.get(damage, content))
    if damage == "gone":
        file.unlink()
    again = opened(tmp_path)
    again.drop_damaged(wanted)
    here = ~again.missing(wanted)
    assert np.array_equal(again.open()[again.slots(wanted.take(np.flatnonzero(here)))], values[here])
    assert here.sum() >= {"places": 0, "flipped": 200, "other cache": 200}.get(damage, 300)


# Projection and choice.


def blobs(count: int = 400, classes: int = 4) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Labels, features that show them, and features that show nothing."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, count)
    telling = rng.normal(size=(classes, 12))[labels] * 2 + rng.normal(size=(count, 12))
    return torch.from_numpy(labels), telling[:, None].astype(np.float16), rng.normal(size=(count, 1, 40)).astype("f2")


def test_depths_get_the_same_energy() -> None:
    _, telling, nothing = blobs()
    seen = Features.in_memory({"last": telling * np.float16(50), "middle": nothing})
    projection = Projection.fit(seen, ("last", "middle"), classes=4, seed=0)
    points = projection.project(seen, views=1)[:, 0]
    energy = points.square().mean(dim=0)
    assert float(energy[:12].sum()) == pytest.approx(float(energy[12:].sum()), rel=1e-3)
    assert float(energy.mean()) == pytest.approx(1.0, rel=1e-3)


def recipe() -> HeadRecipe:
    made = plan(TrainingOptions(), rows=400, classes=4, longest_sides=np.array([32]), device="cpu")
    assert isinstance(made, HeadRecipe)
    return made


def test_depths_that_show_the_labels_are_chosen_without_any_truth() -> None:
    labels, telling, nothing = blobs()
    for maps in ({"last": telling, "middle": nothing}, {"last": nothing, "middle": telling}):
        data = HeadData(Features.in_memory(maps), labels, 4, torch.zeros(400, dtype=torch.bool))
        chosen, found = choose_depths(data, recipe(), TrainingSession())
        assert found is not None
        assert [row.depths for row in found] == [["last", "middle"], ["last"], ["middle"]]
        best = max(found, key=lambda row: row.score)
        assert list(chosen.depths) == best.depths
        useful = next(name for name, values in maps.items() if values is telling)
        assert useful in chosen.depths
    one = HeadData(Features.in_memory({"last": telling}), labels, 4, torch.zeros(400, dtype=torch.bool))
    assert choose_depths(one, recipe(), TrainingSession())[0].depths == ("last",)


def test_least_squares_out_of_fold_never_sees_the_row() -> None:
    labels, telling, _ = blobs()
    points = torch.from_numpy(telling[:, 0].astype(np.float32))
    fold = torch.arange(400) % 5
    before = predict_out_of_fold(points, labels, 4, fold)
    changed = labels.clone()
    changed[fold == 2] = (changed[fold == 2] + 1) % 4  # the labels of one fold decide nothing about that fold
    assert torch.equal(predict_out_of_fold(points, changed, 4, fold)[fold == 2], before[fold == 2])
    plain, by_class = agreements(before.numpy(), labels.numpy())
    assert min(plain, by_class) > 0.8


def test_agreement_is_also_averaged_over_classes() -> None:
    assert agreements(np.array([0, 0, 0, 0]), np.array([0, 0, 0, 3])) == (0.75, 0.5)


def unequal(rare: float = 0.05, wrong: float = 0.05, rows: int = 600) -> tuple[HeadData, np.ndarray]:
    """Two classes, one of them rare, and which of the labels are wrong."""
    rng = np.random.default_rng(3)
    true = (rng.random(rows) < rare).astype(np.int64)
    seen = rng.normal(size=(2, 12))[true] * 2 + rng.normal(size=(rows, 12))
    bad = rng.random(rows) < wrong
    features = Features.in_memory({"last": seen[:, None].astype(np.float16)})
    labels = torch.from_numpy(np.where(bad, 1 - true, true))
    return HeadData(features, labels, 2, torch.zeros(rows, dtype=torch.bool)), bad


def test_the_majority_is_not_called_wrong() -> None:
    data, bad = unequal()
    made = plan(TrainingOptions(), rows=600, classes=2, longest_sides=np.array([32]), device="cpu")
    assert isinstance(made, HeadRecipe)
    chosen, found = choose_loss(data, Projected.of(data, made), made, TrainingSession())
    assert found is not None
    assert {(row.beta, row.prior) for row in found} >= {(2.0, "counted"), (2.0, "uniform"), (0.0, "counted")}
    assert (chosen.beta, chosen.prior) != (2.0, "counted")  # there a class above half of the rows would be unlearned
    _, scores = Heads(data, chosen, TrainingSession()).run()
    flagged = decide(scores, data.labels.numpy(), eps=0.1, trusted=np.zeros(600, dtype=np.bool_)).corrupted
    assert (flagged & bad).sum() >= 0.8 * bad.sum()
    assert (flagged & ~bad).sum() <= 0.02 * 600
    assert "labels it was not shown" in describe_loss(chosen, found)


def test_options_of_the_user_are_not_chosen_over() -> None:
    data, _ = unequal()
    wanted = TrainingOptions(beta=2.0, sieve_eps=0.01)
    made = plan(wanted, rows=600, classes=2, longest_sides=np.array([32]), device="cpu")
    assert isinstance(made, HeadRecipe)
    chosen, found = choose_loss(data, Projected.of(data, made), made, TrainingSession())
    assert found is None
    assert (chosen.beta, chosen.prior, chosen.adaptive_eps) == (2.0, "counted", False)
    _, scores = Heads(data, chosen, TrainingSession()).run()
    assert scores.sieve_eps == 0.01


def test_the_floor_flags_as_many_rows_as_are_expected_to_be_wrong() -> None:
    rng = np.random.default_rng(0)
    true, rows = rng.integers(0, 5, 4000), np.arange(4000)
    logits = rng.normal(size=(4000, 5))
    logits[rows, true] += 4
    probs = torch.from_numpy(logits).softmax(dim=1)
    for share in (0.02, 0.1, 0.3):
        wrong = rng.random(4000) < share
        labels = torch.from_numpy(np.where(wrong, (true + rng.integers(1, 5, 4000)) % 5, true))
        eps, _ = choose_floor(probs, labels)
        assert 1e-12 <= eps <= 1
        flagged = margin(probs, labels, eps) >= 0
        assert float(flagged.double().mean()) == pytest.approx(share, abs=0.03)


# Words.


def test_the_first_line_says_what_is_done_and_why() -> None:
    assert "No GPU" in introduce(recipe(), TrainingOptions(), compared_heads=None)
    wanted = TrainingOptions(weights="none")
    trained = plan(wanted, rows=400, classes=4, longest_sides=np.array([32]), device="cpu")
    assert introduce(trained, wanted, compared_heads=None) == "A resnet8 is trained on your images, from scratch."
    assert "the better one decides" in introduce(trained, TrainingOptions(), compared_heads=recipe())


def test_of_many_classes_a_hundred_are_compared_on() -> None:
    classes, rows = 250, 1000
    labels = torch.arange(rows) % classes
    points = torch.randn((classes, 16), generator=torch.Generator().manual_seed(0))[labels][:, None].half()
    data = HeadData(Features.in_memory({"last": points.numpy()}), labels, classes, torch.zeros(rows, dtype=torch.bool))
    part, taken = fewer_classes(data)
    assert part.classes == 100
    assert len(part.labels) == len(taken) == 400
    assert part.labels.max() == 99
    assert torch.equal(part.features.contents, torch.from_numpy(taken))
    made = replace(frozen(rows, classes), epochs=2, warmup_epochs=1, ramp_epochs=0, sieve_start=2)
    chosen, found = choose_loss(data, Projected.of(data, made), made, TrainingSession())
    assert found is not None
    assert len(found) == len(LOSSES) + len(LOOP_FLOORS)
    assert any(evidence.is_of(chosen) for evidence in found)


def test_cross_entropy_needs_a_lead() -> None:
    losses = [frozen(1000, 10), replace(frozen(1000, 10), beta=0.0)]
    for agreement, beta in ((0.802, 2.0), (0.806, 0.0)):
        found = [
            LossEvidence(score, score, beta=loss.beta, prior="counted", weight_decay=0.1, loop_eps=1.0)
            for loss, score in zip(losses, (0.8, agreement), strict=True)
        ]
        assert best_loss(losses, found).beta == beta
