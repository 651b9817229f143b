"""`doctor` names what is odd, `cache` shows what scans left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from noisesieve.commands.doctor import spellings
from tests.conftest import Run, few_digits, paint, validate


def photo(path: Path, seed: int) -> Path:
    """A smooth image of its own, as photos are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rough = np.random.default_rng(seed).integers(0, 255, (6, 6, 3), dtype=np.uint8)
    Image.fromarray(rough).resize((96, 96), Image.Resampling.BICUBIC).save(path)
    return path


def test_every_kind_of_trouble_is_named(inside: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for label in ("Cat", "cat", "dogs", "dog"):
        for i in range(12):
            photo(data / label / f"{i}.png", seed=hash((label, i)) % 2**31)
    photo(data / "rare/0.png", seed=5)
    (data / ".hidden").mkdir()
    (data / "empty").mkdir()
    (data / "dog/broken.png").write_bytes(b"no image")
    shutil.copy(data / "dog/0.png", data / "dog/copy.png")
    shutil.copy(data / "dog/1.png", data / "Cat/copy.png")
    with Image.open(data / "dog/2.png") as image:  # the same image again, smaller and squeezed through JPEG
        image.resize((64, 64)).save(data / "cat/alike.jpg", quality=80)
    Image.new("RGB", (2000, 40), (9, 90, 9)).save(data / "dog/strip.png")
    done = inside("doctor", data, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    validate(found, "doctor")
    kinds = {finding["kind"]: finding for finding in found["findings"]}
    assert set(kinds) >= {
        "unreadable",
        "passed over",
        "few examples",
        "similar names",
        "two labels",
        "duplicates",
        "alike, two labels",
        "sizes",
        "shapes",
    }
    assert kinds["unreadable"]["examples"] == ["dog/broken.png: not an image of a supported format"]
    assert kinds["similar names"]["count"] == 2
    assert kinds["few examples"]["examples"] == ["rare (1)"]
    assert kinds["two labels"]["count"] == 1
    assert kinds["duplicates"]["count"] == 1
    assert any("alike.jpg" in pair and "dog/2.png" in pair for pair in kinds["alike, two labels"]["examples"])
    assert kinds["shapes"]["examples"] == ["dog/strip.png: 2000x40"]
    assert found["estimate"]["seconds"] > 0
    text = inside("doctor", data).stdout
    assert "Plan of a scan on this machine" in text
    strict = inside("doctor", data, "--strict", "-q")
    assert strict.returncode == 3
    assert "similar names" in strict.stderr


def test_a_sound_dataset_is_called_so(inside: Run, tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        for i in range(12):
            photo(tmp_path / f"data/{label}/{i}.png", seed=hash((label, i)) % 2**31)
    done = inside("doctor", tmp_path / "data", "--strict")
    assert done.returncode == 0, done.stderr
    assert "no findings" in done.stdout


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Cat", "cat "),
        ("cats", "cat"),
        ("fire_truck", "Fire truck"),
        ("berries", "berry"),
        ("box", "boxes"),
        ("horse", "horses"),
        ("potato", "potatoes"),
    ],
)
def test_names_that_people_spell_differently_are_one(one: str, other: str) -> None:
    assert spellings(one) & spellings(other)


@pytest.mark.parametrize(("one", "other"), [("glass", "glas"), ("bus", "bu"), ("1", "-1"), ("as", "a"), ("C", "C-")])
def test_names_that_differ_are_two(one: str, other: str) -> None:
    assert not spellings(one) & spellings(other)


def test_the_cache_is_listed_and_cleared(inside: Run, colours: Path, tmp_path: Path) -> None:
    place = ("--cache-dir", tmp_path / "kept")
    assert inside("doctor", colours, *place).returncode == 0
    (tmp_path / "kept/thesis").mkdir()
    found = json.loads(inside("cache", *place, "--json").stdout)
    validate(found, "cache")
    (entry,) = found["entries"]
    assert (entry["images"], entry["size"]) == (120, 32)  # images of 16 px: nothing larger is compared
    assert "120" in inside("cache", *place).stdout
    young = json.loads(inside("cache", *place, "--clear", "--older-than", "1d", "--json").stdout)
    assert len(young["entries"]) == 1
    gone = json.loads(inside("cache", *place, "--clear", "--json").stdout)
    assert (gone["entries"], len(gone["cleared"])) == ([], 1)
    assert (tmp_path / "kept/thesis").exists()  # not ours
    assert inside("cache", *place, "--older-than", "old").returncode == 2
    paint(tmp_path / "x.png", (1, 1, 1))


def test_different_drawings_are_not_called_alike_and_a_gpu_must_be_there(inside: Run, tmp_path: Path) -> None:
    digits = few_digits(tmp_path / "digits", each=40)
    done = inside("doctor", digits, "--strict", "--json")
    assert done.returncode == 0, done.stderr
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        assert inside("doctor", digits, "--device", "cuda").returncode == 2


def test_a_scan_survives_that_its_cache_is_cleared(tmp_path: Path) -> None:
    from noisesieve.pixels.pixel_cache import CachedPixels

    (tmp_path / "p").write_bytes(bytes(4 * 16 * 16 * 3))
    pixels = CachedPixels(tmp_path / "p", 16, np.arange(4))
    assert len(list(pixels.batches([np.arange(4)]))) == 1
    (tmp_path / "p").unlink()
    assert len(list(pixels.batches([np.arange(2)]))) == 1


def test_an_option_may_be_called_like_a_command(inside: Run, colours: Path) -> None:
    Path("noisesieve.toml").write_text('cache = false\noutput = "mine"\n')
    assert inside("doctor", colours, "-q").returncode == 0
    assert inside("cache").returncode == 0
