"""Options come from the settings' fields, once; what is set for one command stays with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer.main

from noisesieve.cli import build_app
from noisesieve.commands.command_settings import ExportSettings, RetrainSettings
from noisesieve.commands.measure_settings import EvaluateSettings
from noisesieve.commands.scan_settings import ScanSettings
from noisesieve.core.errors import UsageError
from noisesieve.core.options import build_settings, default_of, option_fields
from noisesieve.exports.formats import EXPORTS
from tests.conftest import Run
from tests.runs import make_run

COMMANDS: dict[str, Any] = typer.main.get_command(build_app()).commands  # type: ignore[attr-defined]


def test_choices_are_what_the_rooms_have() -> None:
    assert option_fields(ExportSettings)["to"][1].allowed() == tuple(EXPORTS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_shows_no_internals(inside: Run, name: str) -> None:
    shown = inside(name, "--help").stdout
    for word in ("<list", "{DATA}", "Optional", "lambda", "None"):
        assert word not in shown


@pytest.mark.parametrize("name", ["epochs", "lr", "cache_budget", "beta", "image_size"])
def test_the_command_lines_default_is_the_settings_default(name: str) -> None:
    (parameter,) = [p for p in COMMANDS["scan"].params if p.name == name]
    given = default_of(ScanSettings, name)
    assert parameter.default is None or parameter.default == given


def test_nested_settings_may_have_the_name_of_one_of_their_options() -> None:
    made = build_settings(RetrainSettings, {"run": "r", "test": "t", "test_root": "x"})
    assert made.test.test == Path("t")
    assert made.test.test_root == Path("x")
    assert build_settings(EvaluateSettings, {"truth": "t.csv"}).truth.truth == Path("t.csv")


def test_an_unknown_option_and_a_value_out_of_bounds_are_refused() -> None:
    with pytest.raises(UsageError, match="'epoch' is not an option"):
        build_settings(RetrainSettings, {"run": "r", "epoch": 3})
    with pytest.raises(UsageError, match=r"--epochs 0: must be a whole number"):
        build_settings(RetrainSettings, {"run": "r", "epochs": 0})


def test_an_option_of_scan_in_the_environment_does_not_reach_other_commands(
    inside: Run, colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(colours, tmp_path / "run", {f"red/{i}.png": "blue" for i in range(6)})
    monkeypatch.setenv("NOISESIEVE_LIMIT", "2")
    found = json.loads(inside("review", tmp_path / "run", "--json", "--force").stdout)
    assert found["shown"] == 6
    assert json.loads(inside("scan", colours, "--dry-run", "--json").stdout)["examples"] == 2
    monkeypatch.setenv("NOISESIEVE_REVIEW_LIMIT", "4")
    assert json.loads(inside("review", tmp_path / "run", "--json", "--force").stdout)["shown"] == 4
