"""Forged documents and planted links: a stranger's run is read or refused by name, and nothing outside it changes."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from noisesieve.core.files import sha256_of
from tests.campaign.faults import Ended, run
from tests.campaign.flips import FAILED
from tests.hostile.attack import forge_run, snapshot

VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    "",
    "x",
    "../../victim",
    "/etc/passwd",
    [],
    [[]],
    {},
    {"a": 1},
)
READERS = (
    ("review", "run"),
    ("explain", "run", "0"),
    ("export", "run", "--to", "folder", "--files", "copy", "--only", "all", "-o", "out", "--force"),
    ("check", "data", "--model", "run", "--workers", "1"),
    ("apply", "run", "decisions.csv", "-o", "new.csv", "--force"),
)
WRITERS = (("review", "run"), ("scan", "data", "-o", "run", "--force"), ("export", "run", "--to", "csv"))
NAMES = (
    "run.json",
    "report.parquet",
    "summary.json",
    "review.html",
    "checkpoint",
    ".lock",
    ".lock.pid",
    "suspects.csv",
)
LEFTOVERS = (".report.parquet.0123abcd.tmp", ".review.html.0123abcd.tmp", ".suspects.csv.0123abcd.old")


def mutate(document: Any, rng: random.Random) -> Any:
    """Replace, remove or add one value somewhere in a JSON document."""
    if isinstance(document, dict) and document and rng.random() < 0.85:
        key = rng.choice(sorted(document))
        if rng.random() < 0.15:
            return {name: value for name, value in document.items() if name != key}
        return {**document, key: mutate(document[key], rng)}
    if isinstance(document, list) and document and rng.random() < 0.7:
        place = rng.randrange(len(document))
        return [*document[:place], mutate(document[place], rng), *document[place + 1 :]]
    return rng.choice(VALUES)


def _forge(document: dict[str, Any], rng: random.Random) -> None:
    changed = mutate(dict(document), rng)
    document.clear()
    document.update(changed if isinstance(changed, dict) else {"identity": changed})


def forge_documents(home: Path, count: int, rng: random.Random) -> Counter[str]:
    """Change run.json, summary.json or model.json of a finished run, with hashes that fit, and read it."""
    found: Counter[str] = Counter()
    keep, victim = home.parent / "kept-run", home.parent / "victim"
    shutil.copytree(home / "run", keep)
    victim.write_text("mine")
    for _ in range(count):
        name = rng.choice(("run.json", "summary.json", "model.json"))
        file = home / "run" / name
        if name == "run.json":
            forge_run(home / "run", lambda document: _forge(document, rng))
        else:
            file.write_text(json.dumps(mutate(json.loads(file.read_text()), rng)))
            known = {name: sha256_of(file)}
            forge_run(home / "run", lambda document, known=known: document["files"].update(known))  # type: ignore[misc]
        ended = run([*rng.choice(READERS)], home)
        found[f"{name}, exit {ended.code}{_wrong(ended)}"] += 1
        if victim.read_text() != "mine":
            found[f"{FAILED} a file outside was changed"] += 1
        shutil.rmtree(home / "run")
        shutil.copytree(keep, home / "run")
    return found


def plant_links(home: Path, count: int, rng: random.Random) -> Counter[str]:
    """Put links to the user's own files in the place of ours, and let commands write there."""
    found: Counter[str] = Counter()
    keep, victim = home.parent / "kept-links", home.parent / "victims"
    shutil.copytree(home / "run", keep)
    victim.mkdir()
    for name in ("bashrc", "00000001.ckpt", ".noisesieve"):
        (victim / name).write_text("mine")
    before = snapshot(victim)
    for _ in range(count):
        for name in rng.sample((*NAMES, *LEFTOVERS), 2):
            path = home / "run" / name
            path.unlink(missing_ok=True)
            path.symlink_to(victim if rng.random() < 0.5 or name == "checkpoint" else victim / "bashrc")
        ended = run([*rng.choice(WRITERS)], home)
        found[f"exit {ended.code}{_wrong(ended)}"] += 1
        if snapshot(victim) != before:
            found[f"{FAILED} a file was written or deleted through a link"] += 1
            break
        shutil.rmtree(home / "run")
        shutil.copytree(keep, home / "run")
    return found


def _wrong(ended: Ended) -> str:
    documented = {0, 1, 2, 3, 4, 5, 6}
    return "" if ended.code in documented and not ended.is_clumsy else f" {FAILED} {ended.err[-300:]}"
