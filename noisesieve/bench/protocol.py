"""The published table: noisesieve and its peers on data that no default was chosen on, by one command.

    python -m noisesieve.bench.protocol ../shared/data -o held-back

The folder holds clothing/train (an image folder) and cifar10n/train.parquet (`image`, `true_label`, `label_aggre`,
`label_random1`). Clothing gets the four planted noises; of CIFAR-10N the second 4,000 rows are taken with the labels
that people gave. `--weights lite0 --freeze` measures the frozen path. Two sets run at a time, one thread each. What is
there already is not run again: use a new folder for a new commit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from noisesieve.bench.plant import inject
from noisesieve.bench.table import HEADINGS, cells
from noisesieve.settings import InjectSettings, SourceSettings

PLANTED = (("instance", 0.2), ("instance", 0.4), ("symmetric", 0.4), ("asymmetric", 0.3))
HUMAN = ("label_aggre", "label_random1")
TRUTH = ("--truth-column", "true_label")
CIFAR_ROWS = slice(4000, 8000)


@dataclass(frozen=True)
class Job:
    """One bench to run."""

    name: str
    arguments: list[str]


def jobs(data: Path, out: Path) -> list[Job]:
    """Every set, its table written into `out`."""
    found = []
    for noise, rate in PLANTED:
        root, table = data / "clothing/train", out / f"clothing-{noise}-{rate:g}.csv"
        _, base = inject(InjectSettings(SourceSettings(root), table, noise, rate, force=True))
        found.append(Job(table.stem, [str(table), *(["--root", str(base)] if base else []), *TRUTH]))
    part = out / "cifar10n.parquet"
    if not part.exists():
        rows = pq.read_table(data / "cifar10n/train.parquet")
        pq.write_table(rows.slice(CIFAR_ROWS.start, CIFAR_ROWS.stop - CIFAR_ROWS.start), part)
    for label in HUMAN:
        found.insert(0, Job(f"cifar10n-{label}", [str(part), "--label-column", label, *TRUTH]))  # the longest first
    return found


def run(job: Job, out: Path, *, methods: str, seed: int, start: Sequence[str]) -> dict[str, Any]:
    """One bench in a process of its own, with one thread; its JSON document."""
    target = out / f"{job.name}-seed{seed}-{methods.replace(',', '+')}.json"
    if not target.exists():
        command = [sys.executable, "-m", "noisesieve", "bench", *job.arguments, *start, "--methods", methods]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "--seed", str(seed), "-q", "-o", str(target)], env=environment, check=True)
        print(f"{job.name}, seed {seed}: done", flush=True)
    document: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return {**document, "name": job.name}


def report(documents: Sequence[dict[str, Any]]) -> str:
    """All sets in one Markdown table."""
    headings = ("set", *HEADINGS, "ECE", "rate error")
    lines = [f"| {' | '.join(headings)} |", f"|---|---|{'---:|' * (len(headings) - 2)}"]
    for document in documents:
        share = document["wrong"] / document["measured"]
        for row in document["methods"]:
            extra = [_signed(row["ece"], ""), _signed(row["noise_rate_error"], "+")]
            name = f"{document['name']}, {share:.1%} wrong, seed {document['seed']}"
            lines.append(f"| {' | '.join((name, *cells(row), *extra))} |")
    lines += ["", "| mean over the sets | F1 | AP | seconds |", "|---|---:|---:|---:|"]
    for name in [row["method"] for row in documents[0]["methods"]]:
        rows = [row for document in documents for row in document["methods"] if row["method"] == name]
        f1, precision, seconds = (_mean(rows, key) for key in ("f1", "average_precision", "seconds"))
        lines.append(f"| {name} | {f1:.3f} | {precision:.3f} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    return float(sum(row[key] or 0.0 for row in rows) / len(rows))


def origin(documents: Sequence[dict[str, Any]]) -> str:
    """Hardware, commit and command, for whoever wants to see the same."""
    machine = documents[0]["machine"]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    ).stdout.strip()
    return (
        f"{machine['processor']}, {machine['threads']} thread a process, {machine['device']}, "
        f"torch {machine['torch']}, "
        f"Python {machine['python']}; noisesieve {documents[0]['version']}, commit {commit or 'unknown'}; "
        f"python -m noisesieve.bench.protocol {' '.join(sys.argv[1:])}\n\n"
    )


def _signed(value: float | None, sign: str) -> str:
    return "" if value is None else f"{value:{sign}.3f}"


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--methods", default="noisesieve,paper,ce,ce-sieve,aum,knn,cleanlab")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", default="none")
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    start = ["--weights", chosen.weights, *(["--freeze"] if chosen.freeze else [])]
    todo = jobs(chosen.data, chosen.output)
    with ThreadPoolExecutor(chosen.processes) as pool:
        shared = {"methods": chosen.methods, "seed": chosen.seed, "start": start}
        found = list(pool.map(lambda job: run(job, chosen.output, **shared), todo))
    table = origin(found) + report(found)
    (chosen.output / f"table-seed{chosen.seed}.md").write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
