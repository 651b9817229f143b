"""Make the published table with one command: noisesieve and its peers on data that no default was chosen on.

    python -m noisesieve.bench.protocol ../shared/data -o held-back

The folder contains cifar10n/train.parquet (`image`, `true_label`, `label_aggre`, `label_random1`) and the image folders
clothing/validation and clothing/test. Of CIFAR-10N rows 12,000 to 16,000 and 16,000 to 20,000 are used, each with its
human labels, with its true labels of which 2 % are flipped, and as a 1:50 tail with 5 and 10 % flipped; of clothing the
713 photos as one set, with four planted noises and two seeds. Two sets run at a time, with one thread each. Results
that exist already are not computed again: use a new folder for a new commit.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from noisesieve.bench.figures import OURS, BenchTable, MethodFigures

NOISESIEVE = (sys.executable, "-P", "-m", "noisesieve")
PLANTED = (("instance", 0.2), ("instance", 0.4), ("symmetric", 0.4), ("asymmetric", 0.3))
HUMAN = ("label_aggre", "label_random1")
TRUTH = ("--truth-column", "true_label")
PARTS = (12_000, 16_000)  # first rows of the parts of CIFAR-10N
PART = 4000
SEEDS = (31, 32)
TAIL = 50  # how many times larger the largest class is than the smallest
METHOD_NAMES = "noisesieve,aum,aum-zero,knn,cleanlab,cleanlab-best"
LOST_PRECISION, LOST_F1 = -0.01, -0.02  # a set is lost to a peer if the whole interval of our lead is below


@dataclass(frozen=True)
class BenchJob:
    """One bench to run."""

    name: str
    arguments: list[str]


def bench_jobs(data: Path, out: Path) -> list[BenchJob]:
    """Plant the noises and return one job per set; tables are written to `out`."""
    jobs = []
    rows = pq.read_table(data / "cifar10n/train.parquet")
    for first in PARTS:
        part = rows.slice(first, PART)
        whole = _write(part, out / f"cifar10n-{first}.parquet")
        jobs += [BenchJob(f"cifar10n-{first}-{label}", [whole, "--label-column", label, *TRUTH]) for label in HUMAN]
        right = part.drop_columns(list(HUMAN)).rename_columns({"true_label": "label"})
        flipped = _write(right, out / f"cifar10n-{first}-right.parquet")
        jobs.append(_planted(f"cifar10n-{first}-symmetric-0.02", flipped, "symmetric", 0.02, SEEDS[0], out))
        tail = right.take(_tail(right["label"].to_pylist(), np.random.default_rng(SEEDS[0])))
        rare = _write(tail, out / f"cifar10n-{first}-tail-right.parquet")
        for rate in (0.05, 0.1):
            jobs.append(_planted(f"cifar10n-{first}-tail-{rate:g}", rare, "symmetric", rate, SEEDS[0], out))
    photos, root = out / "clothing-713.csv", data / "clothing"
    with photos.open("w", newline="", encoding="utf-8") as file:
        files = [path for split in ("validation", "test") for path in sorted((root / split).rglob("*.jpg"))]
        csv.writer(file).writerows([("path", "label"), *((path.relative_to(root), path.parent.name) for path in files)])
    for seed in SEEDS:
        for noise, rate in PLANTED:
            name = f"clothing-713-{noise}-{rate:g}-{seed}"
            jobs.append(_planted(name, str(photos), noise, rate, seed, out, "--root", str(root)))
    return jobs


def _write(table: pa.Table, path: Path) -> str:
    if not path.exists():
        pq.write_table(table, path)
    return str(path)


def _planted(name: str, source: str, noise: str, rate: float, seed: int, out: Path, *where: str) -> BenchJob:
    """Plant a noise and return the job on the new table."""
    target = out / f"{name}{Path(source).suffix}"
    options = ["--noise", noise, "--rate", f"{rate:g}", "--seed", str(seed), "-o", str(target), "--force"]
    subprocess.run([*NOISESIEVE, "inject", source, *options, *where, "-q"], stdout=subprocess.DEVNULL, check=True)
    return BenchJob(name, [str(target), *where, *TRUTH])


def _tail(labels: list[str], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return rows of which classes have sizes that fall exponentially, from the largest to a fiftieth of it."""
    names, codes, counts = np.unique(np.array(labels), return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    chosen = []
    for i, code in enumerate(order):
        size = max(2, round(counts[order[0]] * TAIL ** (-i / (len(names) - 1))))
        chosen.append(rng.permutation(np.flatnonzero(codes == code))[:size])
    return np.sort(np.concatenate(chosen))


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
    """Return all sets in one Markdown table: F1 of what is flagged and shown, AP, and every peer's F1 and AP."""
    peers = [row.method for row in next(iter(by_set.values())).methods if row.method != OURS]
    headings = ["set", "wrong", "flagged F1", "shown F1", "AP", "right, shown", "ECE", "rate error", *peers]
    lines = [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    for name, table in by_set.items():
        rows = {row.method: row for row in table.methods}
        ours = rows[OURS]
        figures = [
            table.wrong / table.measured,
            ours.f1,
            ours.f1_shown,
            ours.average_precision,
            ours.shown_right,
            ours.ece,
        ]
        cells = [*(f"{value or 0:.3f}" for value in figures), _signed(ours.noise_rate_error, "+")]
        lines.append(f"| {' | '.join([name, *cells, *(_peer(rows[peer]) for peer in peers)])} |")
    tables = list(by_set.values())
    lines += [
        "",
        "| mean over the sets | F1 | AP | our lead, F1 shown / AP | sets lost, F1 / AP |",
        "|---|---:|---:|---:|---:|",
    ]
    for method in [OURS, *peers]:
        rows_of = [row for table in tables for row in table.methods if row.method == method]
        f1 = _mean([(row.f1_shown if method == OURS else row.f1) or 0.0 for row in rows_of])
        ap = _mean([row.average_precision or 0.0 for row in rows_of])
        leads = [(row.f1_lead, row.precision_lead) for row in rows_of if row.f1_lead and row.precision_lead]
        lead = f"{_mean([a.value for a, _ in leads]):+.3f} / {_mean([b.value for _, b in leads]):+.3f}" if leads else ""
        lost = sum(a.high < LOST_F1 for a, _ in leads), sum(b.high < LOST_PRECISION for _, b in leads)
        lines.append(f"| {method} | {f1:.3f} | {ap:.3f} | {lead} | {f'{lost[0]} / {lost[1]}' if leads else ''} |")
    return "\n".join(lines) + "\n"


def _peer(row: MethodFigures) -> str:
    """Return F1 / AP of a peer, marked where it wins: * the interval of our lead is below the mark of a lost set."""
    assert row.f1_lead is not None
    assert row.precision_lead is not None
    f1, ap = ("*" if row.f1_lead.high < LOST_F1 else ""), ("*" if row.precision_lead.high < LOST_PRECISION else "")
    return f"{row.f1 or 0:.3f}{f1} / {row.average_precision or 0:.3f}{ap}"


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
    parser.add_argument("--methods", default=METHOD_NAMES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", default="lite0")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    start = ["--weights", chosen.weights, *(["--freeze"] if chosen.weights != "none" else [])]
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
