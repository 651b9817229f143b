"""Make the published table with one command: noisesieve and its peers on data that no default was chosen on.

    python -m noisesieve.bench.protocol ../shared/data -o held-back

The folder contains clothing/train (an image folder) and cifar10n/train.parquet (`image`, `true_label`, `label_aggre`,
`label_random1`). Clothing gets the four planted noises; of CIFAR-10N rows 4,000 to 8,000 are used with their human
labels. `--weights lite0 --freeze` measures the frozen path. Two sets run at a time, with one thread each. Results that
exist already are not computed again: use a new folder for a new commit.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from noisesieve.bench.figures import HEADINGS, BenchTable
from noisesieve.bench.methods import METHODS

NOISESIEVE = (sys.executable, "-P", "-m", "noisesieve")
PLANTED = (("instance", 0.2), ("instance", 0.4), ("symmetric", 0.4), ("asymmetric", 0.3))
HUMAN = ("label_aggre", "label_random1")
TRUTH = ("--truth-column", "true_label")
CIFAR_ROWS = slice(4000, 8000)


@dataclass(frozen=True)
class BenchJob:
    """One bench to run."""

    name: str
    arguments: list[str]


def bench_jobs(data: Path, out: Path) -> list[BenchJob]:
    """Plant the noises and return one job per set; tables are written to `out`."""
    jobs = []
    for noise, rate in PLANTED:
        table = out / f"clothing-{noise}-{rate:g}.csv"
        options = ["--noise", noise, "--rate", f"{rate:g}", "-o", str(table), "--force", "--json"]
        command = [*NOISESIEVE, "inject", str(data / "clothing/train"), *options]
        planted = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        jobs.append(BenchJob(table.stem, [*shlex.split(planted["scan"])[2:], *TRUTH]))
    part = out / "cifar10n.parquet"
    if not part.exists():
        rows = pq.read_table(data / "cifar10n/train.parquet")
        pq.write_table(rows.slice(CIFAR_ROWS.start, CIFAR_ROWS.stop - CIFAR_ROWS.start), part)
    for label in HUMAN:  # first, since they take longest
        jobs.insert(0, BenchJob(f"cifar10n-{label}", [str(part), "--label-column", label, *TRUTH]))
    return jobs


def run(job: BenchJob, out: Path, *, methods: str, seed: int, start: Sequence[str]) -> BenchTable:
    """Run one bench in its own process, with one thread, and return its table."""
    target = out / f"{job.name}-seed{seed}-{methods.replace(',', '+')}.json"
    if not target.exists():
        command = [*NOISESIEVE, "bench", *job.arguments, *start, "--methods", methods]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "--seed", str(seed), "-q", "-o", str(target)], env=environment, check=True)
        print(f"{job.name}, seed {seed}: done", flush=True)
    return BenchTable.from_document(json.loads(target.read_text(encoding="utf-8")))


def report(by_set: dict[str, BenchTable]) -> str:
    """Return all sets in one Markdown table."""
    headings = ("set", *HEADINGS, "ECE", "rate error")
    lines = [f"| {' | '.join(headings)} |", f"|---|---|{'---:|' * (len(headings) - 2)}"]
    for name, table in by_set.items():
        for row in table.methods:
            extra = [_signed(row.ece, ""), _signed(row.noise_rate_error, "+")]
            words = f"{name}, {table.wrong / table.measured:.1%} wrong, seed {table.seed}"
            lines.append(f"| {' | '.join((words, *row.cells(), *extra))} |")
    lines += ["", "| mean over the sets | F1 | AP | seconds |", "|---|---:|---:|---:|"]
    tables = list(by_set.values())
    for method in [row.method for row in tables[0].methods]:
        rows = [row for table in tables for row in table.methods if row.method == method]
        f1, ap = _mean([row.f1 or 0.0 for row in rows]), _mean([row.average_precision or 0.0 for row in rows])
        lines.append(f"| {method} | {f1:.3f} | {ap:.3f} | {_mean([row.seconds for row in rows]):.0f} |")
    return "\n".join(lines) + "\n"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def origin(table: BenchTable) -> str:
    """Return hardware, commit and command, so that others can repeat the measurement."""
    machine = table.machine
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    ).stdout.strip()
    return (
        f"{machine.processor}, {machine.threads} thread per process, {machine.device}, torch {machine.torch}, "
        f"Python {machine.python}; noisesieve {table.version}, commit {commit or 'unknown'}; "
        f"python -m noisesieve.bench.protocol {' '.join(sys.argv[1:])}\n\n"
    )


def _signed(value: float | None, sign: str) -> str:
    return "" if value is None else f"{value:{sign}.3f}"


def main() -> None:
    """Run the sets that have no result yet, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", default="none")
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    start = ["--weights", chosen.weights, *(["--freeze"] if chosen.freeze else [])]
    jobs = bench_jobs(chosen.data, chosen.output)
    with ThreadPoolExecutor(chosen.processes) as pool:
        shared = {"methods": chosen.methods, "seed": chosen.seed, "start": start}
        tables = list(pool.map(lambda job: run(job, chosen.output, **shared), jobs))
    by_name = {job.name: table for job, table in zip(jobs, tables, strict=True)}
    table = origin(tables[0]) + report(by_name)
    (chosen.output / f"table-seed{chosen.seed}.md").write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
