"""A registry is the only place: a source, an export, a network or a command is one file and one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import Tensor, nn

from noisesieve.cli import COMMANDS
from noisesieve.cli import options as o
from noisesieve.cli.terminal import print_line
from noisesieve.commands.command_settings import ExplainSettings
from noisesieve.core.records import ImageLocation, Index
from noisesieve.exports.formats import EXPORTS
from noisesieve.exports.job import ExportFormat, ExportJob, ExportResult
from noisesieve.learn.networks.backbones import BACKBONES, Backbone
from noisesieve.learn.networks.depths import Depth, Network
from noisesieve.learn.recipes import LAST
from noisesieve.sources.containers import SOURCES, Source
from noisesieve.sources.source_settings import SourceSettings
from tests.conftest import QUICK, Run


def read_pairs(settings: SourceSettings) -> Index:
    """A made-up container: lines of `path label`."""
    pairs = [line.split() for line in settings.path.read_text().splitlines()]
    paths: list[str | None] = [path for path, _ in pairs]
    root = settings.path.parent
    return Index(
        name=settings.path.stem,
        kind="pairs",
        root=root,
        ids=[path for path, _ in pairs],
        paths=paths,
        labels=[label for _, label in pairs],
        locate=lambda row: ImageLocation(str(root / str(paths[row]))),
    )


def write_count(job: ExportJob) -> ExportResult:
    """A made-up format: the number of rows."""
    job.out.write_text(str(len(job.table)))
    return ExportResult(len(job.table), [])


class OneConvolution(Network):
    """A made-up network."""

    def __init__(self, depths: tuple[Depth, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.set_head(depths, classes)

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        return {LAST: self.layer(x)}


@o.with_options(ExplainSettings)
def greet(run: o.Run, quiet: o.Quiet = False, *, options: o.Options) -> None:
    """Say hello to a run.

    Example: noisesieve greet my-run
    """
    print_line(f"hello {run.name}")


def test_a_made_up_source_network_export_and_command_work_from_the_command_line(
    colours: Path, inside: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_pairs = Source(read_pairs, lambda path: path.suffix == ".pairs")
    network = Backbone(lambda depths, classes, size: OneConvolution(depths, classes), depths=(Depth(LAST, 8),))
    monkeypatch.setitem(SOURCES, "pairs", is_pairs)
    monkeypatch.setitem(BACKBONES, "one-convolution", network)
    monkeypatch.setitem(EXPORTS, "count", ExportFormat(write_count, "{only}.count"))
    monkeypatch.setitem(COMMANDS, "greet", (greet, "Say hello."))
    listed = colours.parent / "set.pairs"
    files = sorted(colours.rglob("*.png"))
    listed.write_text("".join(f"{file.relative_to(listed.parent)} {file.parent.name}\n" for file in files))

    done = inside("scan", listed, "-o", "run", *QUICK, "--backbone", "one-convolution", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert (summary["examples"], summary["readable"]) == (len(files), len(files))
    assert summary["training"]["recipe"]["backbone"] == "one-convolution"
    assert inside("export", "run", "--to", "count", "--only", "all").returncode == 0
    assert Path("run/all.count").read_text() == str(len(files))
    assert inside("greet", "run").stdout == "hello run\n"
    for command in ("apply", "check", "explain"):  # a run of a source that they have never heard of
        first = files[0].relative_to(listed.parent)
        Path("d.csv").write_text(f"id,label\n{first},blue\n")
        words = {
            "apply": ("run", "d.csv", "-o", "new.csv"),
            "check": (listed, "--model", "run", "--max-corrupted", "none"),
            "explain": ("run", first),
        }
        assert inside(command, *words[command]).returncode == 0, command
    help_text = inside("export", "--help").stdout
    assert "count" in help_text


def test_an_unknown_choice_names_what_the_registry_has(inside: Run) -> None:
    done = inside("export", "run", "--to", "nothing")
    assert done.returncode == 2
    assert all(name in done.stderr for name in EXPORTS)
