"""The fault campaign: `python -m tests.campaign`. Not part of the ordinary tests; `.ci/run` runs a short one.

Commands are killed at random operations on files, get errors of the system there, and find flipped bits in every file
of a run and of the cache. Documents are forged and links are planted, as a stranger can. Asked each time: is the old or
the new result whole, is the second try byte-identical to an undisturbed one, is the exit code one of the documented, is
there never a traceback, and is no file outside changed?
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["COLUMNS"] = "200"


import noisesieve.commands.scan  # noqa: F401
from tests.campaign.faults import Ended, Fault, run
from tests.campaign.flips import FAILED, cached_files, flip, flip_bits
from tests.campaign.forgeries import forge_documents, plant_links
from tests.campaign.images import mutate_images
from tests.conftest import COLOURS, paint

DOCUMENTED = {0, 3, 4, 5}
TINY = ("--weights", "none", "--epochs", "6", "--warmup-epochs", "3", "--ramp-epochs", "1", "--sieve-start", "4")
FLAGS = ("--no-flip", "--image-size", "16", "--cache-dir", "cache", "--workers", "1")
EPHEMERAL = {"history.parquet", "run.json", "summary.json", "retrain.json", ".lock"}  # these have times in them


@dataclass(frozen=True)
class Scenario:
    """A command to disturb. `results` are the paths that it makes or replaces."""

    name: str
    words: tuple[str, ...]
    results: tuple[str, ...]
    prepare: tuple[tuple[str, ...], ...] = ()  # commands that make what it starts from
    older: tuple[str, ...] | None = None  # the command that made the older result, which it replaces


@dataclass
class Campaign:
    """The state of one campaign."""

    place: Path
    random: random.Random
    found: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    number: int = 0

    def fail(self, what: str) -> None:
        """Note a failure, and show it at once."""
        self.failures.append(what)
        print(f"FAILED {what}", flush=True)

    def add(self, part: str, found: Counter[str]) -> None:
        """Take over what a part found."""
        for what, count in found.items():
            self.found[f"{part}: {what}"] += count
            if FAILED in what:
                self.fail(f"{part}: {what}")

    def fresh(self, template: Path) -> Path:
        """Return a copy of a prepared folder."""
        self.number += 1
        home = self.place / f"home{self.number}"
        shutil.copytree(template, home, symlinks=True)
        return home


SCAN = ("scan", "data", "-o", "run", *TINY, *FLAGS)
FROZEN = ("scan", "data", "-o", "run", "--image-size", "32", *FLAGS[3:], "--epochs", "3")
DECIDED = "path,label\nred/0.png,green\nblue/3.png,green\n"
EXPORT = ("export", "run", "--to", "folder", "-o", "out", "--force", "--only", "all")
SCENARIOS = {
    "scan": Scenario("scan", SCAN, ("run",)),
    "rescan": Scenario("rescan", (*SCAN, "--seed", "1", "--force"), ("run",), (SCAN,)),
    "frozen": Scenario("frozen", FROZEN, ("run",)),
    "retrain": Scenario(
        "retrain", ("retrain", "run", "-o", "new", "--epochs", "2", "--workers", "1"), ("new",), (SCAN,)
    ),
    "review": Scenario("review", ("review", "run"), ("run/review.html",), (SCAN,)),
    "export": Scenario("export", EXPORT, ("out",), (SCAN,), (*EXPORT, "--top", "3")),
    "apply": Scenario(
        "apply",
        ("apply", "run", "decisions.csv", "-o", "new.csv", "--force"),
        ("new.csv", "new.audit.csv", "new.summary.json"),
        (SCAN,),
        ("apply", "run", "older.csv", "-o", "new.csv"),
    ),
    "tree": Scenario(
        "tree",
        ("apply", "run", "decisions.csv", "-o", "tree", "--tree", "copy", "--force"),
        ("tree", "tree.audit.csv", "tree.summary.json"),
        (SCAN,),
        ("apply", "run", "older.csv", "-o", "tree", "--tree", "copy"),
    ),
    "waive": Scenario(
        "waive",
        ("waive", "run", "red/1.png", "--reason", "seen"),
        (".noisesieve-waivers.csv",),
        (SCAN,),
        ("waive", "run", "red/0.png", "--reason", "seen"),
    ),
}


def main() -> int:
    """Run the campaign, print what was found, and return 1 if anything failed."""
    options = _options()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="noisesieve-campaign-") as place:
        campaign = Campaign(Path(place), random.Random(options.seed))
        counts = {
            "scan": options.scan_kills,
            "rescan": options.rescan_kills,
            "frozen": options.frozen_kills,
            "retrain": options.retrain_kills,
            **dict.fromkeys(("review", "export", "apply", "tree", "waive"), options.other_kills),
        }
        share = max(1, options.faults // len(SCENARIOS)) if options.faults else 0
        for name, scenario in SCENARIOS.items():
            if counts[name] or share:
                disturb(campaign, scenario, kills=counts[name], faults=share)
                _progress(campaign, name, began)
        if options.flips:
            home = _prepared(campaign, Scenario("flips", FROZEN, ("run",), (FROZEN,)))
            campaign.add("flip", flip_bits(home, options.flips, campaign.random))
            again = Scenario("flips", (*FROZEN, "--force"), ("run",))
            flip_and_scan(campaign, home, again, options.flips // 40)
            _progress(campaign, "flips", began)
        for part, attack, count in (
            ("forged", forge_documents, options.forgeries),
            ("link", plant_links, options.links),
        ):
            if count:
                home = _prepared(campaign, Scenario(part, FROZEN, ("run",), (FROZEN,)))
                campaign.add(part, attack(home, count, campaign.random))
                _progress(campaign, part, began)
        if options.images:
            campaign.add("images", mutate_images(campaign.place / "images", options.images, campaign.random))
            _progress(campaign, "images", began)
    for what, count in sorted(campaign.found.items()):
        print(f"{count:6,}  {what}")
    print(f"{len(campaign.failures)} failures, seed {options.seed}, {time.monotonic() - began:.0f} s")
    return 1 if campaign.failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    for name, count in {
        "scan-kills": 4,
        "rescan-kills": 3,
        "frozen-kills": 2,
        "retrain-kills": 2,
        "other-kills": 2,
        "faults": 9,
        "flips": 120,
        "forgeries": 40,
        "links": 15,
        "images": 300,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    return parser.parse_args()


def _progress(campaign: Campaign, name: str, began: float) -> None:
    print(f"{name}: done after {time.monotonic() - began:.0f} s, {len(campaign.failures)} failures", flush=True)


# Kills and errors


def disturb(campaign: Campaign, scenario: Scenario, *, kills: int, faults: int) -> None:
    """Kill a command, and let the system fail under it, at random operations."""
    start = _prepared(campaign, scenario)
    before = _results(start, scenario)
    calm = campaign.fresh(start)
    counted = run([*scenario.words], calm, Fault(str(calm)))
    if counted.code != 0:
        campaign.fail(f"{scenario.name}: cannot even run undisturbed: {counted.err}")
        return
    wanted = _results(calm, scenario)
    for number in range(kills + faults):
        kind = "kill" if number < kills else campaign.random.choice(("ENOSPC", "EIO"))
        lasting = kind != "kill" and campaign.random.random() < 0.3
        fault_at = campaign.random.randint(1, counted.counts[kind])
        home = campaign.fresh(start)
        fault = Fault(str(home), kind, fault_at, lasting)
        ended = run([*scenario.words], home, fault)
        what = f"{scenario.name}, {kind}{' lasting' if lasting else ''} at {fault_at} of {counted.counts[kind]}"
        campaign.found[f"{scenario.name}: {kind}, exit {ended.code}"] += 1
        _check_ended(campaign, what, ended, kind)
        if kind != "kill" and ended.code == 0:
            _check_results(campaign, what, _results(home, scenario), wanted, scenario)
        else:
            _check_old_or_new(campaign, what, _results(home, scenario), before, wanted, scenario)
        _check_reader(campaign, what, home, scenario)
        again = run([*scenario.words], home)
        if again.code != 0:
            campaign.fail(f"{what}: the second try ends with {again.code}: {again.err}")
        _check_results(campaign, f"{what}, second try", _results(home, scenario), wanted, scenario)
        if left := [str(path.relative_to(home)) for path in home.rglob("*") if _is_leftover(path)]:
            campaign.fail(f"{what}: left behind {left[:3]}")
        shutil.rmtree(home, ignore_errors=True)


def _prepared(campaign: Campaign, scenario: Scenario) -> Path:
    """Return a folder with the dataset and with what the command starts from."""
    home = campaign.place / f"start-{scenario.name}"
    for c, (name, colour) in enumerate(COLOURS.items()):
        for i in range(8):
            paint(home / "data" / name / f"{i}.png", colour, seed=100 * c + i)
    (home / "decisions.csv").write_text(DECIDED)
    for words in scenario.prepare:
        ended = run([*words], home)
        if ended.code != 0:
            raise RuntimeError(f"{' '.join(words)}: {ended.err}")
    if scenario.older is not None:
        (home / "older.csv").write_text("path,label\nred/2.png,blue\n")
        if (ended := run([*scenario.older], home)).code != 0:
            raise RuntimeError(ended.err)
    return home


def _results(home: Path, scenario: Scenario) -> dict[str, bytes]:
    """Return the content of the files that the command makes, without those that have times in them."""
    found = {}
    for name in scenario.results:
        path = home / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            inner = file.relative_to(home).parts
            hidden = any(part.startswith(".") for part in inner[1:]) or "checkpoint" in inner
            if file.is_file() and not hidden and file.name not in EPHEMERAL:
                found["/".join(inner)] = file.read_bytes()
    return found


def _check_ended(campaign: Campaign, what: str, ended: Ended, kind: str) -> None:
    if ended.is_clumsy:
        campaign.fail(f"{what}: clumsy: {ended.err}")
    elif ended.code not in (DOCUMENTED if kind != "kill" else {-9, 0}):
        campaign.fail(f"{what}: exit {ended.code}: {ended.err}")


def _check_results(
    campaign: Campaign, what: str, found: dict[str, bytes], wanted: dict[str, bytes], scenario: Scenario
) -> None:
    """Refuse any difference from an undisturbed result. A page may be missing where its disk was full."""
    different = [name for name in wanted if found.get(name) != wanted[name]]
    if "second try" not in what:
        different = [name for name in different if not (name.endswith("review.html") and name not in found)]
    if different or found.keys() - wanted.keys():
        campaign.fail(f"{what}: another result: {different[:3] or sorted(found.keys() - wanted.keys())[:3]}")


def _check_old_or_new(
    campaign: Campaign,
    what: str,
    found: dict[str, bytes],
    before: dict[str, bytes],
    wanted: dict[str, bytes],
    scenario: Scenario,
) -> None:
    """Refuse torn files, and files of two results side by side."""
    torn = [name for name, content in found.items() if content not in (before.get(name), wanted.get(name))]
    if torn:
        campaign.fail(f"{what}: neither the old nor the new file: {torn[:3]}")
    changed = {name for name in found if before.get(name) != wanted.get(name)}
    ages = {"new" if found[name] == wanted.get(name) else "old" for name in changed}
    if len(ages) > 1:
        campaign.fail(f"{what}: files of two results side by side: {sorted(changed)[:4]}")
    if before and scenario.name in ("export", "waive", "review") and before.keys() - found.keys():
        campaign.fail(f"{what}: the old result is gone: {sorted(before.keys() - found.keys())[:3]}")


def _check_reader(campaign: Campaign, what: str, home: Path, scenario: Scenario) -> None:
    """A reader of the run gets the old or the new one whole, or a refusal."""
    if not (home / "run").exists():
        return
    ended = run(["export", "run", "--to", "csv", "--only", "all", "-o", "read.csv", "--force"], home)
    if ended.is_clumsy or ended.code not in (0, 3, 5):
        campaign.fail(f"{what}: a reader ends with {ended.code}: {ended.err}")
    elif ended.code == 5 and (home / "run/.report.parquet.publish").exists():
        return  # decided, and not in place: readers refuse it, and the second try finishes it
    elif ended.code != 0 and scenario.name not in ("scan", "frozen"):
        campaign.fail(f"{what}: the finished run cannot be read any more: {ended.err}")
    (home / "read.csv").unlink(missing_ok=True)


def _is_leftover(path: Path) -> bool:
    return path.name.endswith((".tmp", ".old", ".publish")) or path.name == "checkpoint"


def flip_and_scan(campaign: Campaign, home: Path, scenario: Scenario, count: int) -> None:
    """Flip a bit in the cache and scan again: the same result, and exit 0."""
    wanted = _results(home, scenario)
    for _ in range(count):
        file = campaign.random.choice(cached_files(home))
        what = flip(file, campaign.random)
        ended = run([*scenario.words], home)
        campaign.found[f"flip: in the cache, then a scan, exit {ended.code}"] += 1
        if ended.code != 0 or ended.is_clumsy:
            campaign.fail(f"{what}: exit {ended.code}: {ended.err}")
        _check_results(campaign, f"{what}, second try", _results(home, scenario), wanted, scenario)


if __name__ == "__main__":
    sys.exit(main())
