"""The house's own rules: which room may import which, what --help may load, how long a module may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "noisesieve"
ROOMS = (
    "sources",
    "pixels",
    "learn",
    "sieve",
    "report",
    "review",
    "exports",
    "decisions",
    "gate",
    "retrain",
    "noise",
)
LEAVES = {"settings", "request", "errors", "records", "names", "files", "watch"}
ALLOWED = {
    "learn": {"sieve"},
    "retrain": {"learn"},
    "review": {"report"},
    "exports": {"report"},
    "decisions": {"report"},
    "gate": {"report"},
}


def imports(file: Path) -> set[str]:
    """The parts of noisesieve that a module imports, by their first name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            if node.module == "noisesieve":
                found |= {alias.name for alias in node.names}
            elif node.module and node.module.startswith("noisesieve."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("noisesieve.")}
    return found


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_one_way(file: Path) -> None:
    place = file.relative_to(PACKAGE).parts
    used = imports(file) - LEAVES - {"__version__"}
    if place[0] in ROOMS:
        assert used <= {place[0]} | ALLOWED.get(place[0], set())
    elif len(place) == 1 and place[0][:-3] in LEAVES:
        assert not used
    elif place in (("dataset.py",), ("reopen.py",), ("roles.py",)):
        assert used <= set(ROOMS)
    elif place == ("correct.py",):
        assert used <= {*ROOMS, "reopen", "handover"}
    elif place in (("handover.py",), ("explain.py",), ("check.py",), ("doctor.py",)):
        assert used <= {*ROOMS, "reopen", "dataset"}
    elif place in (("exam.py",), ("features.py",)):
        assert used <= {*ROOMS, "dataset"}
    elif place == ("job.py",):
        assert used <= {*ROOMS, "reopen", "exam", "roles"}
    elif place == ("retraining.py",):
        assert used <= {*ROOMS, "reopen", "roles", "job"}
    elif place == ("preflight.py",):
        assert used <= {*ROOMS, "dataset"}
    elif place == ("pipeline.py",):
        assert used <= {*ROOMS, "dataset", "features", "handover", "preflight"}
    elif place[0] == "cli":
        stages = {"pipeline", "preflight", "handover", "correct", "explain", "check", "doctor", "reopen", "retraining"}
        assert used <= {"cli", "report", "gate", "pixels", "bench", *stages}


def test_the_formulas_stand_in_one_place() -> None:
    hits = [file for file in PACKAGE.rglob("*.py") if "logaddexp(" in file.read_text() or "log1p(" in file.read_text()]
    assert [file.relative_to(PACKAGE).as_posix() for file in hits] == ["sieve/formulas.py"]


def test_nothing_is_unpickled() -> None:
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        assert "weights_only=False" not in text
        assert "import pickle" not in text
        assert text.count("torch.load(") == text.count("weights_only=True")


def test_help_and_import_load_no_torch() -> None:
    heavy = "('torch', 'pandas', 'pyarrow', 'numpy')"
    code = f"import sys, noisesieve, noisesieve.cli; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("tool", [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)], ids=" ".join)
def test_the_linters_have_nothing_to_say(tool: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", *tool]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PACKAGE.parent)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_version_is_the_same_everywhere() -> None:
    import noisesieve

    project = (PACKAGE.parent / "pyproject.toml").read_text()
    assert f'version = "{noisesieve.__version__}"' in project
    assert f"[{noisesieve.__version__}]" in (PACKAGE.parent / "CHANGELOG.md").read_text()
