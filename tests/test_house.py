"""The rules of the house: which room may import which, one name for one thing, what --help may load, linters."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "noisesieve"
FILES = sorted(PACKAGE.rglob("*.py"))

# core ← rooms ← commands ← cli. A room imports core, itself, and these other rooms.
ROOMS: dict[str, set[str]] = {
    "sources": set(),
    "pixels": set(),
    "sieve": set(),
    "noise": set(),
    "learn": {"sieve", "pixels"},
    "report": {"learn"},
    "retrain": {"learn"},
    "review": {"report"},
    "exports": {"report"},
    "decisions": {"report"},
    "gate": {"report"},
    "measure": {"sieve", "report"},
    "bench": {"measure", "learn", "sieve", "report"},
}
ALLOWED = {
    "core": set(),
    **ROOMS,
    "commands": set(ROOMS),
    "cli": {"commands", *ROOMS},
    "__init__.py": {"commands", "report"},
    "__main__.py": {"cli"},
}
# The same function in several files: the Python API, the command and its command line; or one per format.
TWICE = {"folder.py", "loop.py"}  # a source and an export; a scan's training and a retraining
SHARED_NAMES = {
    *(path.stem for path in (PACKAGE / "commands").glob("[!_]*.py")),
    *("main", "read", "read_report", "render", "write"),
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


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_one_way(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0]
    assert imports(file) - {"__version__", "core", room} <= ALLOWED[room]


def public_names(kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> Iterator[tuple[str, str]]:
    for file in FILES:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, kind) and not node.name.startswith("_"):
                yield node.name, file.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("kind", [ast.ClassDef, ast.FunctionDef], ids=["classes", "functions"])
def test_one_name_means_one_thing(kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> None:
    files = defaultdict(list)
    for name, file in public_names(kind):
        files[name].append(file)
    assert {name: where for name, where in files.items() if len(where) > 1 and name not in SHARED_NAMES} == {}


def test_a_module_name_is_found_once() -> None:
    files = defaultdict(list)
    for file in FILES:
        if file.parent.name != "cli" and not file.name.startswith(
            "__"
        ):  # cli/x.py is the command line of commands/x.py
            files[file.name].append(file.relative_to(PACKAGE).as_posix())
    assert {name: where for name, where in files.items() if len(where) > 1 and name not in TWICE} == {}


def test_no_parameter_shadows_a_module_that_its_file_imports() -> None:
    for file in FILES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        modules = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in ("noisesieve", *(f"noisesieve.{r}" for r in ALLOWED))
            for alias in node.names
            if (PACKAGE / alias.name).is_dir() or any(PACKAGE.rglob(f"{alias.name}.py"))
        }
        parameters = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        assert not modules & parameters - SHARED_NAMES, file


def test_the_formulas_stand_in_one_place() -> None:
    hits = [file for file in FILES if "logaddexp(" in file.read_text() or "log1p(" in file.read_text()]
    assert [file.relative_to(PACKAGE).as_posix() for file in hits] == ["sieve/formulas.py"]


def test_nothing_is_unpickled() -> None:
    for file in FILES:
        text = file.read_text()
        assert "weights_only=False" not in text
        assert "import pickle" not in text
        assert text.count("torch.load(") == text.count("weights_only=True")


def test_only_the_command_line_prints_or_reads_the_environment() -> None:
    for file in FILES:
        room = file.relative_to(PACKAGE).parts[0]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if room == "cli" or file.name in ("protocol.py", "scale.py", "speed.py") or not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            assert called not in ("print", "sys.exit", "os.getenv", "os.environ.get"), f"{file}:{node.lineno}"


def test_help_and_import_load_no_torch() -> None:
    heavy = "('torch', 'pandas', 'pyarrow', 'numpy')"
    code = f"import sys, noisesieve, noisesieve.cli; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert found.stdout.strip() == "[]"


def test_a_command_loads_torchvision_and_pandas_only_where_they_are_used() -> None:
    slow = "('torchvision', 'pandas', 'sklearn')"
    code = f"import sys, noisesieve.commands.scan; print([m for m in {slow} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
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
