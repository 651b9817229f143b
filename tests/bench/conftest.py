"""Here the command line runs inside the test's own process: torch is loaded once, not once a command."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from noisesieve.cli import main
from tests.conftest import Run


@pytest.fixture
def noisesieve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line as `main` does, in an empty working folder."""
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
