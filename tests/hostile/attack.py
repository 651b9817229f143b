"""Attacks: what a stranger's dataset, run folder or cache can contain."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from noisesieve.core.files import digest
from tests.conftest import COLOURS, paint

SCRIPT = Path(sysconfig.get_path("scripts")) / "noisesieve"
MODULES = ("numpy.py", "PIL/__init__.py", "torch.py", "noisesieve/__init__.py", "sitecustomize.py", "pyarrow.py")


def few_colours(root: Path, each: int = 12) -> Path:
    """A small image folder of three easy classes."""
    for c, (name, colour) in enumerate(COLOURS.items()):
        for i in range(each):
            paint(root / name / f"{i}.png", colour, seed=100 * c + i)
    return root


def plant_modules(folder: Path, marker: Path) -> None:
    """Put modules of well-known names into a folder; whoever imports one writes the marker."""
    for name in MODULES:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"open({str(marker)!r}, 'a').write({name!r} + '\\n')\nraise ImportError('planted')\n")


def noisesieve_command() -> list[str]:
    """The command as it is installed; without an installation, as near to it as can be."""
    return [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-P", "-m", "noisesieve"]


def forge_run(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change run.json as a stranger can: with the right hash, but without this user's signature."""
    file = run / "run.json"
    document = json.loads(file.read_text())
    document.pop("signature", None)
    document.pop("digest")
    change(document)
    file.write_text(json.dumps({**document, "digest": digest(document)}))


def snapshot(folder: Path) -> dict[str, str]:
    """Every file and link below a folder, with its content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_bytes().hex()
    return found
