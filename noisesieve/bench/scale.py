"""Measure how CPU time and memory grow with the rows: every command on made data, each in a process of its own.

    python -m noisesieve.bench.scale -o scale.json
    python -m noisesieve.bench.scale -o before.json --code ../another-checkout

Kinds: `predictions` (N x K probabilities), `embeddings` (64 numbers per row), `images` (16 px PNG files, heads on
frozen features), `network` (the same images, six epochs of resnet8). Peak is the largest resident memory of the main
process; the tree's peak is the largest sum over all its processes, sampled 20 times a second. "named" are the bytes
that a run of this size has to hold: probabilities, features and margin history.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from noisesieve.core.records import Bytes

NOISESIEVE = (sys.executable, "-P", "-m", "noisesieve")
ROWS, CLASSES, WIDTH, SIDE = (10_000, 100_000, 1_000_000), 10, 64, 16
WRONG = 0.1  # share of the made labels that are flipped
BLOCK = 100_000
KINDS = ("predictions", "embeddings", "images", "network")


@dataclass(frozen=True)
class Measurement:
    """One command on one dataset."""

    command: str
    kind: str
    rows: int
    classes: int
    cpu_seconds: float
    peak_bytes: int  # of the largest process
    tree_bytes: int  # of all processes together
    named_bytes: int  # probabilities, features and margin history that the command has to hold


def measure(arguments: Sequence[str], code: Path | None, folder: Path) -> tuple[float, int, int]:
    """Return CPU seconds, the peak of the largest process, and that of the whole tree. A failure raises an error."""
    place = Path(__file__).parents[2] if code is None else code.resolve()
    environment = {**os.environ, "PYTHONPATH": str(place), "XDG_CACHE_HOME": str(folder / "cache"), "NO_COLOR": "1"}
    with (folder / "output.txt").open("w+b") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=output, cwd=folder, env=environment)
        peak, done = [0], threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, peak, done), daemon=True)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        done.set()
        watcher.join()
        if process.returncode not in (0, 1):  # 1: the gate failed, which is a result
            output.seek(0)
            raise RuntimeError(f"{' '.join(arguments)}: exit {process.returncode}\n{output.read().decode()[-2000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, peak[0]


def _watch(process: int, peak: list[int], done: threading.Event) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    while not done.wait(0.05):
        peak[0] = max(peak[0], sum(_resident(member) for member in _tree(process)) * page)


def _tree(process: int) -> Iterator[int]:
    yield process
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))
    except OSError:
        return  # it ended meanwhile


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0


def make_data(folder: Path, kind: str, rows: int, classes: int) -> list[str]:
    """Write a dataset and return the arguments of its scan."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, classes, rows)
    given = np.where(rng.random(rows) < WRONG, (truth + rng.integers(1, classes, rows)) % classes, truth)
    names = [f"class-{number:04}" for number in range(classes)]
    if kind in ("images", "network"):
        for row in range(rows):
            file = folder / "images" / names[given[row]] / f"{row:07}.png"
            file.parent.mkdir(exist_ok=True, parents=True)
            Image.fromarray(_image(int(truth[row]), classes, rng)).save(file)
        return [str(folder / "images")]
    with (folder / "labels.csv").open("w", encoding="utf-8") as file:
        file.write("id,label\n")
        for start in range(0, rows, BLOCK):
            part = given[start : start + BLOCK].tolist()
            file.writelines(f"photo-{start + i:08}.jpg,{names[code]}\n" for i, code in enumerate(part))
    width = classes if kind == "predictions" else WIDTH
    centres = rng.normal(size=(classes, width)).astype(np.float32)
    values = np.lib.format.open_memmap(folder / "v.npy", mode="w+", dtype=np.float32, shape=(rows, width))
    for start in range(0, rows, BLOCK):
        own = truth[start : start + BLOCK]
        noise = rng.normal(size=(len(own), width)).astype(np.float32)
        if kind == "embeddings":
            values[start : start + BLOCK] = centres[own] + noise
        else:
            noise[np.arange(len(own)), own] += 4.0 + np.log(classes / 10)
            raised = np.exp(noise)
            values[start : start + BLOCK] = raised / raised.sum(axis=1, keepdims=True)
    values.flush()
    options = ["--predictions", str(folder / "v.npy"), "--classes", ",".join(names)]
    return [
        *(str(folder / "labels.csv"), "--id-column", "id"),
        *(options if kind == "predictions" else ["--embeddings", str(folder / "v.npy")]),
    ]


def _image(truth: int, classes: int, rng: np.random.Generator) -> Bytes:
    """Return a noisy image whose stripes tell its class."""
    phase = 2 * np.pi * truth / classes
    stripes = 128 + 60 * np.sin(phase + np.arange(SIDE) * (1 + truth % 5) / 2)[None, :, None]
    noisy = stripes + rng.normal(0, 30, (SIDE, SIDE, 3)) + 20 * np.cos(phase)
    image: Bytes = noisy.clip(0, 255).astype(np.uint8)
    return image


def commands_of(kind: str, scan: list[str], run_folder: str, row: str) -> dict[str, list[str]]:
    """Return the commands to measure, in order: later ones use the run of the first."""
    network = ["--weights", "none", "--epochs", "6", "--warmup-epochs", "2", "--ramp-epochs", "1"]
    extra = {"network": [*network, "--sieve-start", "4"], "images": ["--image-size", "32"]}.get(kind, [])
    measured = {
        "scan": ["scan", *scan, *extra, "-o", run_folder, "--no-review"],
        "scan again": ["scan", *scan, *extra, "-o", run_folder, "--no-review"],
        "review": ["review", run_folder],
        "explain": ["explain", run_folder, row],
        "waive": ["waive", run_folder, row, "--file", "waivers.csv", "--reason", "measured"],
        "export csv": ["export", run_folder, "--to", "csv", "--only", "all", "-o", "all.csv", "--force"],
        "diff": ["diff", run_folder, run_folder],
        "apply": ["apply", run_folder, "--accept-above", "0.9", "-o", "new.csv", "--force"],
    }
    if kind != "predictions":
        policy = ["--max-corrupted", "none", "-o", "batch.parquet", "--force"]
        measured["check"] = ["check", *scan, "--model", run_folder, *policy]
    if kind == "images":
        measured["doctor"] = ["doctor", *scan]
    return measured


def named_bytes(command: str, kind: str, rows: int, classes: int, run_folder: Path) -> int:
    """Return the bytes of probabilities, features and margin history that a command has to hold."""
    if command not in ("scan", "check"):
        return 0
    probabilities = rows * classes * 4 * (1 if kind in ("predictions", "network") else 2)
    history = 0
    if command == "scan" and kind != "predictions":
        import pyarrow.parquet as pq

        history = rows * 4 * pq.read_schema(run_folder / "margin_history.parquet").field("margins").type.list_size
    widths = {"embeddings": WIDTH * 4 * 2, "images": 2 * 256 * 4 if command == "scan" else 0}  # own, and projected
    return probabilities + history + rows * widths.get(kind, 0)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["predictions"])
    parser.add_argument("--only", nargs="+", help="commands to measure; scan is always run")
    parser.add_argument("--code", type=Path, help="another checkout to measure")
    parser.add_argument("--folder", type=Path, default=Path("scale-data"), help="where the data is made, once")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    found: list[Measurement] = []
    base = measure([sys.executable, "-P", "-c", "import noisesieve.commands.scan"], options.code, folder)
    print(f"{'command':12} {'kind':12} {'rows':>9} {'CPU s':>8} {'peak MiB':>9} {'tree MiB':>9} {'named MiB':>9}")
    print(f"{'imports':12} {'':12} {'':>9} {base[0]:8.1f} {base[1] / 2**20:9.0f} {base[2] / 2**20:9.0f}")
    for kind in options.kinds:
        for rows in options.rows:
            data = folder / f"{'images' if kind == 'network' else kind}-{rows}-{options.classes}"
            marker = data / "scan.json"
            if not marker.exists():
                scan = make_data(data, kind, rows, options.classes)
                marker.write_text(json.dumps(scan), encoding="utf-8")
            scan = json.loads(marker.read_text(encoding="utf-8"))
            work = data / f"work-{time.time_ns()}"
            work.mkdir()
            row = f"{rows // 2}"
            for command, words in commands_of(kind, scan, str(work / "run"), row).items():
                if options.only and command != "scan" and command not in options.only:
                    continue
                cpu, peak, tree = measure([*NOISESIEVE, *words], options.code, work)
                named = named_bytes(command, kind, rows, options.classes, work / "run")
                one = Measurement(command, kind, rows, options.classes, cpu, peak, tree, named)
                found.append(one)
                sizes = " ".join(f"{size / 2**20:9.0f}" for size in (peak, tree, named))
                print(f"{command:12} {kind:12} {rows:9,} {cpu:8.1f} {sizes}", flush=True)
                options.output.write_text(
                    json.dumps({"imports": base, "measured": [asdict(item) for item in found]}, indent=1),
                    encoding="utf-8",
                )


if __name__ == "__main__":
    main()
