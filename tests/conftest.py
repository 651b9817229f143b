"""Small real datasets, and a quick recipe, shared by the tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from PIL import Image
from referencing import Registry, Resource

from noisesieve.cli import main

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line does, before torch loads
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers on two cores: each has its own
REPOSITORY = Path(__file__).parent.parent
SAMPLE = REPOSITORY / "sample_data"
SHARED = REPOSITORY.parent / "shared"

QUICK = (
    *("--weights", "none", "--epochs", "8", "--warmup-epochs", "4"),
    *("--ramp-epochs", "2", "--sieve-start", "6", "--no-flip"),
)
QUICK_OPTIONS = {
    "weights": "none",
    "epochs": 8,
    "warmup_epochs": 4,
    "ramp_epochs": 2,
    "sieve_start": 6,
    "flip": False,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slow tests first: some at the head of either half, where the two processes begin."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    rest = [item for item in items if not item.get_closest_marker("slow")]
    half = max(0, len(items) // 2 - len(slow[::2]))
    items[:] = [*slow[::2], *rest[:half], *slow[1::2], *rest[half:]]


def paint(path: Path, colour: tuple[int, int, int], *, seed: int = 0, size: tuple[int, int] = (16, 16)) -> Path:
    """A noisy image of one colour: a class that a network tells apart in a few steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-40, 40, (size[1], size[0], 3))
    Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(path)
    return path


COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """An image folder of three easy classes, 40 images each."""
    root = tmp_path / "colours"
    for c, (name, colour) in enumerate(COLOURS.items()):
        for i in range(40):
            paint(root / name / f"{i}.png", colour, seed=100 * c + i)
    return root


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the checkout, where it is there."""
    if not (SHARED / "data").is_dir():
        pytest.skip("../shared/data is not here")
    return SHARED / "data"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has its own cache and no settings from outside."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("NOISESIEVE_")]:
        monkeypatch.delenv(name)


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def noisesieve(tmp_path: Path) -> Run:
    """Run the command line as a user does, in an empty working folder."""

    def run(*arguments: object, timeout: float = 600, **environment: str) -> subprocess.CompletedProcess[str]:
        home = tmp_path / "work"
        home.mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, "-m", "noisesieve", *map(str, arguments)],
            cwd=home,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "80", **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The same inside the test's own process, as `main` does it: torch is loaded once, not once a command."""
    home = tmp_path / "work"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = ["noisesieve", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", words)
        before, code = signal.getsignal(signal.SIGINT), 0
        capsys.readouterr()
        try:
            main()
        except SystemExit as left:
            code = int(left.code or 0)
        finally:
            signal.signal(signal.SIGINT, before)
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, printed.out, printed.err)

    return run


def few_digits(folder: Path, each: int) -> Path:
    """A part of the sample data: the first images of every class."""
    for source in sorted((SAMPLE / "digits").iterdir()):
        target = folder / source.name
        target.mkdir(parents=True)
        for file in sorted(source.iterdir())[:each]:
            shutil.copy(file, target)
    return folder


def validate(document: object, name: str) -> None:
    """A JSON document must be what its schema in the package says."""
    folder = REPOSITORY / "noisesieve/report/schemas"
    schemas = {file.name: json.loads(file.read_text()) for file in folder.glob("*.json")}
    registry = Registry().with_resources((key, Resource.from_contents(value)) for key, value in schemas.items())
    jsonschema.Draft202012Validator(schemas[f"{name}.schema.json"], registry=registry).validate(document)
