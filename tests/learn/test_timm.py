"""Any network of timm: depths, statistics, sizes and weights, over families that differ; no hub is reached."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

import noisesieve as ns
from noisesieve.core.errors import InputError, UsageError
from noisesieve.learn.describe import describe, introduce
from noisesieve.learn.distributed import Processes
from noisesieve.learn.networks.backbones import build, depths_of
from noisesieve.learn.networks.depths import MIDDLE
from noisesieve.learn.networks.pretrained import load_backbone, statistics_of
from noisesieve.learn.networks.timm_net import TimmNet, facts_of, fitting_size, hub_file
from noisesieve.learn.plan import image_size, plan
from noisesieve.learn.recipes import LAST
from noisesieve.learn.training_settings import TrainingOptions
from tests.conftest import Run

FAMILIES = {
    "resnet18": 64,
    "efficientnet_b0": 64,
    "convnext_atto": 64,
    "mobilenetv3_small_050": 64,
    "vit_tiny_patch16_224": 64,
    "vit_small_patch14_reg4_dinov2": 56,
    "swin_tiny_patch4_window7_224": 224,
    "mixer_s32_224": 224,
    "eva02_tiny_patch14_224": 56,
    "test_vit": 160,
}
WITHOUT = "test_plain"  # registered below: a network that has no intermediate features
HOOKED = "test_hooked"


class Plain(torch.nn.Module):
    """The least that a network of timm is."""

    def __init__(self, num_classes: int = 10, **_: object) -> None:
        super().__init__()
        self.num_features = 8
        self.conv = torch.nn.Conv2d(3, 8, 3, 2, 1)
        self.head = torch.nn.Linear(8, num_classes) if num_classes else torch.nn.Identity()
        statistics: dict[str, object] = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
        self.pretrained_cfg = {"input_size": (3, 64, 64), "classifier": "head", **statistics}

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.conv(x)
        return found

    def forward_head(self, x: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        return x.mean(dim=(2, 3))


def test_plain(pretrained: bool, **options: object) -> Plain:
    """The entry that timm's registry calls; no test."""
    options.pop("pretrained_cfg", None)
    options.pop("pretrained_cfg_overlay", None)
    options.pop("cache_dir", None)
    return Plain(**options)  # type: ignore[arg-type]


def test_hooked(pretrained: bool, **options: object) -> Plain:
    """Another one, of an older timm: it names its intermediate features, and cannot return them itself."""
    body = test_plain(pretrained, **options)
    body.feature_info = [  # type: ignore[assignment]
        {"num_chs": 8, "reduction": 2, "module": "conv"},
        {"num_chs": 8, "reduction": 4, "module": "head"},
    ]
    return body


test_hooked.__test__ = False  # type: ignore[attr-defined]
timm.models.register_model(test_hooked)
test_plain.__test__ = False  # type: ignore[attr-defined]
timm.models.register_model(test_plain)


def saved(name: str, folder: Path, size: int | None = None) -> Path:
    """Save a randomly initialised network as timm would publish it, with its classifier."""
    torch.manual_seed(0)
    options = {} if size is None else {"img_size": size}
    body = timm.create_model(name, pretrained=False, **options)
    file = folder / f"{name}.safetensors"
    save_file({key: value.contiguous().clone() for key, value in body.state_dict().items()}, file)
    return file


@pytest.mark.parametrize(("name", "size"), [*FAMILIES.items(), (WITHOUT, 64), (HOOKED, 64)])
def test_every_family_gives_features_of_the_depths_it_names(name: str, size: int, tmp_path: Path) -> None:
    known = f"timm/{name}"
    depths = depths_of(known)
    network = build(known, classes=3, image_size=size, seed=0, depths=tuple(depth.name for depth in depths)).eval()
    assert isinstance(network, TimmNet)
    load_backbone(network, saved(name, tmp_path))
    with torch.inference_mode():
        images = torch.randn(2, 3, size, size)
        found = network.depth_features(images)
        assert {key: tuple(value.shape) for key, value in found.items()} == {
            depth.name: (2, depth.width) for depth in depths
        }
        assert network(images).shape == (2, 3)
        plain = timm.create_model(
            name, pretrained=False, num_classes=0, **({"img_size": size} if facts_of(known).takes_size else {})
        )
        plain.load_state_dict(network.body.state_dict())
        whole = plain.eval().forward_head(plain.forward_features(images), pre_logits=True)
        assert torch.allclose(found[LAST], whole.flatten(1), atol=1e-4)
    assert (MIDDLE in found) == (name != WITHOUT)
    facts = facts_of(known)
    assert statistics_of("file", known) == (facts.mean, facts.std)
    assert all(0 < value < 256 for value in (*facts.mean, *facts.std))


def test_positions_are_resampled_and_a_file_of_another_network_is_refused(tmp_path: Path) -> None:
    file = saved("vit_tiny_patch16_224", tmp_path)
    small = build("timm/vit_tiny_patch16_224", classes=2, image_size=96, seed=0)
    load_backbone(small, file)
    assert small.body.pos_embed.shape[1] == 6 * 6 + 1
    other = build("timm/resnet18", classes=2, image_size=64, seed=0)
    with pytest.raises(InputError, match="does not fit the network"):
        load_backbone(other, file)


def test_sizes_follow_the_model_the_machine_and_the_user() -> None:
    dino = "timm/vit_small_patch14_reg4_dinov2"
    assert facts_of(dino).size == 518
    assert fitting_size(dino, 160) == 154
    sides = np.array([400])
    options = TrainingOptions(weights=dino)
    assert image_size(options, longest_sides=sides, device="cpu") == 224
    assert image_size(options, longest_sides=sides, device="cuda") == 518
    chosen = TrainingOptions(weights=dino, image_size=150)
    assert image_size(chosen, longest_sides=sides, device="cpu") == 154
    recipe = plan(options, rows=100, classes=3, longest_sides=sides, device="cpu")
    assert recipe.frozen
    assert (recipe.backbone, recipe.weights, recipe.image_size) == (dino, dino, 224)
    assert plan(options, rows=100, classes=3, longest_sides=sides, device="cuda").frozen
    tuned = TrainingOptions(weights=dino, freeze=False)
    assert not plan(tuned, rows=100, classes=3, longest_sides=sides, device="cuda").frozen
    assert "at 224 px" in describe(recipe, Processes.join("cpu"))
    only = plan(
        TrainingOptions(backbone=f"timm/{WITHOUT}", weights="x.pt"),
        rows=9,
        classes=3,
        longest_sides=sides,
        device="cpu",
    )
    assert "its last layer alone is used" in introduce(only, TrainingOptions(), compared_heads=None)


def test_a_network_that_works_with_one_size_only_gets_that_one() -> None:
    assert fitting_size("timm/botnet26t_256", 160) == 256
    assert fitting_size("timm/crossvit_9_240", 224) == 240
    assert fitting_size("timm/pvt_v2_b0", 160) == 160


def test_an_unknown_network_is_refused_with_similar_names(inside: Run, colours: Path) -> None:
    done = inside("scan", colours, "--weights", "timm/resnet1888")
    assert done.returncode == 2
    assert "timm has no such network" in done.stderr


def hub_of(folder: Path, name: str, file: Path | None) -> Path:
    """Lay out a stand-in of the hub's cache folder, as huggingface_hub does."""
    config = timm.get_pretrained_cfg(name)
    home = folder / f"models--{config.hf_hub_id.replace('/', '--')}"
    snapshot = home / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs/main").write_text("0" * 40)
    if file is not None:
        (snapshot / "model.safetensors").write_bytes(file.read_bytes())
    return home


def test_weights_come_from_the_hubs_cache_and_offline_errors_name_file_and_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        InputError, match=r"model\.safetensors of timm/resnet18\.a1_in1k is not in the hub's cache"
    ) as error:
        hub_file("timm/resnet18")
    assert str(tmp_path / "hub/models--timm--resnet18.a1_in1k") in str(error.value)
    file = saved("resnet18", tmp_path)
    hub_of(tmp_path / "hub", "resnet18", file)
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    found = hub_file("timm/resnet18")
    assert found.read_bytes() == file.read_bytes()
    with pytest.raises(InputError, match="no weights of it on the hub"):
        hub_file("timm/mixer_s32_224")
    with pytest.raises(UsageError, match="no such network"):
        hub_file("timm/nothing")


@pytest.mark.slow
def test_a_scan_with_a_network_of_timm_is_checked_and_explained(inside: Run, colours: Path, tmp_path: Path) -> None:
    file = saved("test_vit", tmp_path)
    words = ("--backbone", "timm/test_vit", "--weights", file, "--image-size", "40", "--cache-dir", tmp_path / "cache")
    done = inside("scan", colours, *words, "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    recipe = json.loads((tmp_path / "run/summary.json").read_text())["training"]["recipe"]
    assert recipe["backbone"] == "timm/test_vit"
    assert recipe["image_size"] % 16 == 0
    assert ns.read_report(tmp_path / "run").summary.corrupted < 20
    check = inside("check", colours, "--model", tmp_path / "run", "--cache-dir", tmp_path / "cache", "--json")
    assert check.returncode == 0, check.stderr
    assert inside("explain", tmp_path / "run", "red/0.png", "--json").returncode == 0
    assert {path.name for path in (tmp_path / "cache").iterdir()} - {"noisesieve"} == {
        path.name for path in (tmp_path / "cache").glob("*px-v*-*") if path.is_dir()
    }
    plan_only = inside("scan", colours, *words, "--dry-run", "--json")
    assert plan_only.returncode == 0, plan_only.stderr


@pytest.mark.parametrize("name", ["test_vit", HOOKED])
def test_a_copy_of_a_network_gives_the_same_features_and_can_be_trained(name: str) -> None:
    depths = tuple(depth.name for depth in depths_of(f"timm/{name}"))
    network = build(f"timm/{name}", classes=3, image_size=64, seed=0, depths=depths).eval()
    twin = copy.deepcopy(network)
    with torch.no_grad():
        for value in twin.parameters():
            value.mul_(2)
    images = torch.randn(2, 3, 64, 64)
    before = network(images)
    twin(images)
    assert torch.equal(network(images), before)  # the copy's hook is its own
    network.train()(images).sum().backward()
    assert network.fc.weight.grad is not None


@pytest.mark.slow
def test_a_network_of_timm_is_trained_whole_where_that_is_wanted(inside: Run, colours: Path, tmp_path: Path) -> None:
    words = ("--backbone", "timm/test_vit", "--weights", saved("test_vit", tmp_path), "--image-size", "32")
    options = ("--no-freeze", "--epochs", "3", "--warmup-epochs", "1", "--no-review")
    done = inside("scan", colours, *words, *options, "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/model.safetensors").exists()
