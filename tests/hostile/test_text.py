"""Labels and names are text: never a command of a CI system, a mention, a link, a formula, or a device of Windows."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from noisesieve.core.text import csv_line, folder_name, printable, printable_json
from noisesieve.gate.markdown import escape
from tests.conftest import Run
from tests.hostile.attack import few_colours

COMMANDS = ("::set-output name=x::1", "##vso[task.setvariable variable=x]1", "##[error]no", "a ::error::b")


@pytest.mark.parametrize("text", COMMANDS)
def test_commands_of_ci_systems_are_broken_up(text: str) -> None:
    for shown in (printable(text), printable_json({"label": text}), escape(text)):
        assert "##vso[" not in shown
        assert "##[" not in shown
    assert "::set" not in printable(text)
    assert "::error" not in printable(text)
    assert json.loads(printable_json({"label": text})) == {"label": text}


@pytest.mark.parametrize(
    "command", [("scan", "--dry-run"), ("doctor",), ("scan", "--weights", "none", "--epochs", "2")]
)
def test_class_names_are_no_commands_in_any_output(
    inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    data = few_colours(tmp_path / "::warning::x", each=6)
    (data / "red").rename(data / "::set-output name=evil::1")
    (data / "green").rename(data / "##vso[task.complete result=Failed]")
    (data / "blue" / "7.png").write_bytes(b"broken")
    (data / "::empty::").mkdir()
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    ended = inside(command[0], data, *command[1:])
    assert ended.returncode == 0, ended.stderr
    for line in (ended.stdout + ended.stderr).splitlines():
        assert not line.lstrip().startswith("::"), line
        assert "##vso[" not in line, line


def test_check_annotations_are_the_only_commands(inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.runs import make_run

    data = few_colours(tmp_path / "data", each=6)
    (data / "red").rename(data / "##vso[x] ::set-env::")
    make_run(data, tmp_path / "run", {"blue/0.png": "green"})
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    ended = inside("check", data, "--model", tmp_path / "run")
    for line in (ended.stdout + ended.stderr).splitlines():
        known = ("::stop-commands::", "::error ", "::warning ")
        assert not line.startswith("::") or line.startswith(known) or line.endswith("::"), line
        assert "##vso[" not in line, line


def test_markdown_notifies_nobody_and_links_nowhere() -> None:
    shown = escape("@octocat see https://evil.example/x and www.evil.example")
    assert "@" not in shown
    assert "https://" not in shown
    assert "www." not in shown


@pytest.mark.parametrize("cell", ["a;=HYPERLINK(1)", "a\t=1", 'say "x"', "a,b", "a\rb"])
def test_a_cell_with_any_separator_is_quoted(cell: str) -> None:
    for separator in ",;\t":
        line = csv_line([cell, "x"], separator)
        assert line.startswith('"')
        assert next(csv.reader(io.StringIO(line, newline=""), delimiter=separator)) == [cell, "x"]


@pytest.mark.parametrize("name", ["CON", "nul", "com1", "LPT9.txt", "aux.b", ".hidden", "end.", "a/b"])
def test_folder_names_work_on_windows(name: str) -> None:
    shown = folder_name(name)
    assert shown.split(".")[0].upper() not in {"CON", "NUL", "COM1", "LPT9", "AUX"}
    assert not shown.startswith(".")
    assert not shown.endswith(".")
    assert "/" not in shown
