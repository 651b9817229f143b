"""Weights of others: fitted or refused with names, never unpickled, fetched only where they are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file

from noisesieve.core.errors import InputError, UsageError
from noisesieve.learn.networks import pretrained
from noisesieve.learn.networks.backbones import LiteNet, build
from noisesieve.learn.plan import choose_weights, plan
from noisesieve.learn.training_settings import TrainingOptions

PHOTOS, ICONS = np.array([160] * 5), np.array([32] * 5)


def resnet(size: int = 128) -> torch.nn.Module:
    return build("resnet18", classes=3, image_size=size, seed=0)


def test_torchvisions_names_fit_and_the_head_stays_its_own(tmp_path: Path) -> None:
    other = torchvision.models.resnet18(weights=None)
    torch.save(other.state_dict(), tmp_path / "w.pth")
    network = resnet()
    head = network.fc.weight.clone()
    pretrained.load_backbone(network, tmp_path / "w.pth")
    assert torch.equal(network.body.layer1[0].conv1.weight, other.layer1[0].conv1.weight)
    assert torch.equal(network.fc.weight, head)


@pytest.mark.parametrize("wrap", [lambda w: {"state_dict": w}, lambda w: {f"module.{k}": v for k, v in w.items()}])
def test_usual_wrappings_are_taken_off(tmp_path: Path, wrap: object) -> None:
    torch.save(wrap(torchvision.models.resnet18(weights=None).state_dict()), tmp_path / "w.pt")  # type: ignore[operator]
    pretrained.load_backbone(resnet(), tmp_path / "w.pt")


def test_a_runs_own_model_fits_too(tmp_path: Path) -> None:
    save_file(build("resnet8", classes=7, image_size=16, seed=3).state_dict(), tmp_path / "model.safetensors")
    network = build("resnet8", classes=2, image_size=16, seed=0)
    pretrained.load_backbone(network, tmp_path / "model.safetensors")
    assert torch.equal(network.stem[0].weight, build("resnet8", classes=7, image_size=16, seed=3).stem[0].weight)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"body.conv1.weight is 64×3×7×7, not 64×3×3×3"):
        pretrained.load_backbone(resnet(size=32), tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"layer1.2.conv1.weight is missing.* and \d+ more"):
        pretrained.load_backbone(build("resnet34", classes=3, image_size=128, seed=0), tmp_path / "w.pth")


def test_a_larger_networks_file_is_not_taken_in_part(tmp_path: Path) -> None:
    torch.save(torchvision.models.resnet34(weights=None).state_dict(), tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"layer1.2.bn1.bias is not in the network.* and \d+ more"):
        pretrained.load_backbone(resnet(), tmp_path / "w.pth")


def test_odd_tensors_are_refused(tmp_path: Path) -> None:
    weights = torchvision.models.resnet18(weights=None).state_dict()
    for odd in (weights["conv1.weight"].to_sparse(), weights["conv1.weight"].to(torch.complex64)):
        torch.save({**weights, "conv1.weight": odd}, tmp_path / "w.pth")
        with pytest.raises(InputError, match=r"not a plain tensor|no weights that can be read"):
            pretrained.load_backbone(resnet(), tmp_path / "w.pth")


@pytest.mark.parametrize("content", [b"", b"no weights", b"\x80\x04\x95junk", b"PK\x03\x04broken"])
@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_files_that_are_no_weights_are_refused(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        pretrained.load_backbone(resnet(), tmp_path / name)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code was run')",))


def test_a_file_that_would_run_code_is_refused_unrun(tmp_path: Path) -> None:
    torch.save({"weights": Bomb()}, tmp_path / "w.pth")
    with pytest.raises(InputError, match="no weights that can be read"):
        pretrained.load_backbone(resnet(), tmp_path / "w.pth")


def test_broken_numbers_are_refused(tmp_path: Path) -> None:
    weights = torchvision.models.resnet18(weights=None).state_dict()
    weights["conv1.weight"][0] = torch.nan
    torch.save(weights, tmp_path / "w.pth")
    with pytest.raises(InputError, match="not finite"):
        pretrained.load_backbone(resnet(), tmp_path / "w.pth")


def test_imagenet_comes_from_the_hubs_cache_or_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    asked: list[str] = []

    def offline(url: str, target: str, mark: str, progress: bool) -> None:
        asked.append(mark)
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(InputError, match="no route to host") as caught:
        pretrained.weights_file("imagenet", "resnet18")
    place = tmp_path / "checkpoints"
    assert str(place) in (caught.value.hint or "")
    assert "lite0" in (caught.value.hint or "")
    name = torchvision.models.ResNet18_Weights.DEFAULT.url.rpartition("/")[2]
    assert asked == [name.split("-")[1].split(".")[0]]
    place.mkdir(exist_ok=True)
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), place / name)
    assert pretrained.weights_file("imagenet", "resnet18") == place / name
    with pytest.raises(UsageError, match="none for resnet8"):
        pretrained.weights_file("imagenet", "resnet8")


def test_lite0_comes_with_its_weights_takes_any_size_and_its_own_scaling() -> None:
    network = build("lite0", classes=2, image_size=128, seed=0)
    assert isinstance(network, LiteNet)
    file = pretrained.weights_file("lite0", "lite0")
    assert file is not None
    pretrained.load_backbone(network, file)
    with torch.inference_mode():
        assert network.eval().features(torch.zeros(2, 3, 100, 70)).shape == (2, 1280)
    assert pretrained.statistics_of("lite0", "lite0") == ([127.0] * 3, [128.0] * 3)


def test_without_a_gpu_everything_gets_the_frozen_path_unless_a_training_is_asked_for() -> None:
    assert choose_weights(TrainingOptions(), device="cpu") == ("lite0", True)
    assert choose_weights(TrainingOptions(), device="cuda") == ("none", False)
    for options in (
        {"preset": "cifar"},
        {"backbone": "resnet8"},
        {"weights": "none"},
        {"freeze": False},
        {"score_pass": "train"},
    ):
        assert choose_weights(TrainingOptions(**options), device="cpu") == ("none", False)  # type: ignore[arg-type]
    assert choose_weights(TrainingOptions(freeze=True), device="cuda") == ("lite0", True)


def test_sizes_and_rates_of_pretrained_recipes() -> None:
    def made(sides: np.ndarray, **options: object) -> object:
        return plan(TrainingOptions(**options), rows=3000, classes=10, longest_sides=sides, device="cpu")  # type: ignore[arg-type]

    frozen = made(ICONS, weights="lite0", freeze=True)
    assert (frozen.image_size, frozen.frozen, frozen.backbone) == (160, True, "lite0")  # type: ignore[attr-defined]
    assert made(np.array([4000]), weights="lite0", freeze=True).image_size == 224  # type: ignore[attr-defined]
    tuned = made(PHOTOS, weights="imagenet")
    assert (tuned.backbone, tuned.image_size, tuned.body_lr) == ("resnet18", 160, 0.1)  # type: ignore[attr-defined]
    paper = made(PHOTOS, preset="clothing1m", weights="imagenet")
    assert (paper.backbone, paper.image_size, paper.body_lr) == ("resnet50", 224, 1.0)  # type: ignore[attr-defined]
    assert made(PHOTOS, weights="/some/where/mine.pth").weights == "mine.pth"  # type: ignore[attr-defined]
