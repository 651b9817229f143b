"""`inject`: flips that scan reads, in every format, and an honest account of them."""

from __future__ import annotations

import base64
import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisesieve.sources.containers import read_index
from noisesieve.sources.source_settings import SourceSettings
from tests.conftest import SAMPLE, Run, paint, validate


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("noise", ["symmetric", "asymmetric", "instance"])
def test_flips_of_a_folder_are_counted_and_readable(inside: Run, tmp_path: Path, noise: str) -> None:
    out = tmp_path / "noisy.csv"
    done = inside("inject", SAMPLE / "digits", "--noise", noise, "--rate", "30%", "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    describe_suspect, rows = json.loads(done.stdout), rows_of(out)
    validate(describe_suspect, "inject")
    flips = [row for row in rows if row["label"] != row["true_label"]]
    assert list(rows[0]) == ["path", "label", "true_label"]
    assert describe_suspect["flips"] == len(flips) == sum(pair["count"] for pair in describe_suspect["confusions"])
    assert len(rows) == describe_suspect["examples"] == 1797
    deviation = 4 * np.sqrt(describe_suspect["expected_rate"] * (1 - describe_suspect["expected_rate"]) / len(rows))
    assert abs(describe_suspect["planted_rate"] - describe_suspect["expected_rate"]) <= deviation
    assert all(row["path"].startswith(f"{row['true_label']}/") for row in rows)
    assert "--root" in describe_suspect["scan"]
    index = read_index(SourceSettings(path=out, root=SAMPLE / "digits"))
    assert index.labels == [row["label"] for row in rows]
    assert all(Path(index.locate(i).file).exists() for i in range(0, len(index), 100))


def test_the_truncated_mean_is_said_and_shown(inside: Run, colours: Path) -> None:
    done = inside("inject", colours, "--noise", "instance", "--rate", "0.1", "-o", "noisy.csv")
    assert done.returncode == 0, done.stderr
    assert "their mean is 0.1288, not 0.1" in " ".join(done.stdout.split())
    assert "true \\ given" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if "--root" not in line) <= 80


def test_a_table_above_its_images_needs_no_root(inside: Run, colours: Path) -> None:
    out = colours.parent / "noisy.csv"
    done = inside("inject", colours, "--noise", "symmetric", "--rate", "0.2", "-o", out, "--json")
    assert "--root" not in json.loads(done.stdout)["scan"]
    index = read_index(SourceSettings(path=out))
    assert all(Path(index.locate(i).file).exists() for i in range(len(index)))


def test_other_columns_and_ids_come_along(inside: Run, tmp_path: Path) -> None:
    for i in range(6):
        paint(tmp_path / "images" / f"{i}.png", (10 * i, 0, 0))
    lines = [f'images/{i}.png,{"ab"[i % 2]},{i * 7},"said, ""o\rk""",{i}' for i in range(6)]
    (tmp_path / "in.csv").write_bytes(("path,breed,uid,note,label\n" + "\n".join(lines) + "\n").encode())
    options = ("--noise", "asymmetric", "--rate", "0.5", "--label-column", "breed", "--id-column", "uid")
    done = inside("inject", tmp_path / "in.csv", *options, "-o", tmp_path / "out.csv")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "out.csv")
    assert [row["uid"] for row in rows] == [str(i * 7) for i in range(6)]
    assert {row["note"] for row in rows} == {'said, "o\rk"'}
    assert [row["user_label"] for row in rows] == [str(i) for i in range(6)]  # the user's own column of that name
    assert [row["true_label"] for row in rows] == list("ababab")


def embedded(tmp_path: Path, count: int = 12) -> list[bytes]:
    return [paint(tmp_path / f"e{i}.png", (20 * i, 0, 99), seed=i).read_bytes() for i in range(count)]


def test_embedded_parquet_stays_parquet_with_its_images(inside: Run, tmp_path: Path) -> None:
    blobs = embedded(tmp_path)
    table = pa.table({"image": blobs, "label": ["x", "y", "z"] * 4, "extra": list(range(12))})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=5)
    common = ("inject", tmp_path / "in.parquet", "--noise", "instance", "--rate", "0.4", "--limit", "9")
    refused = inside(*common, "-o", tmp_path / "out.csv")
    assert refused.returncode == 2
    assert "stays parquet" in refused.stderr
    assert not (tmp_path / "out.csv").exists()
    done = inside(*common, "-o", tmp_path / "out.parquet")
    assert done.returncode == 0, done.stderr
    made = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert len(made["label"]) == 9
    assert made["image"] == [blobs[i] for i in made["extra"]]
    assert made["true_label"] == [["x", "y", "z"][i % 3] for i in made["extra"]]


def test_embedded_jsonl_stays_jsonl(inside: Run, tmp_path: Path) -> None:
    blobs = [base64.b64encode(blob).decode() for blob in embedded(tmp_path, 6)]
    rows = [{"image": blob, "label": "ab"[i % 2], "who": f"w{i}"} for i, blob in enumerate(blobs)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = inside("inject", tmp_path / "in.jsonl", "--noise", "symmetric", "--rate", "0.5", "-o", tmp_path / "o.jsonl")
    assert done.returncode == 0, done.stderr
    made = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [row["image"] for row in made] == blobs
    assert [row["true_label"] for row in made] == list("ababab")
    assert [row["who"] for row in made] == [f"w{i}" for i in range(6)]


def test_the_same_seed_gives_the_same_bytes_and_nothing_is_overwritten(inside: Run, colours: Path) -> None:
    common = ("inject", colours, "--noise", "instance", "--rate", "0.2", "-q")
    assert inside(*common, "-o", "a.csv").returncode == 0
    assert inside(*common, "-o", "b.csv").returncode == 0
    assert inside(*common, "-o", "c.csv", "--seed", "1").returncode == 0
    home = colours.parent / "work"
    assert (home / "a.csv").read_bytes() == (home / "b.csv").read_bytes() != (home / "c.csv").read_bytes()
    refused = inside(*common, "-o", "a.csv")
    assert refused.returncode == 4
    assert "--force" in refused.stderr
    assert inside(*common, "-o", "a.csv", "--force").returncode == 0


def test_unreadable_images_keep_their_row_and_their_label(inside: Run, colours: Path) -> None:
    (colours / "red" / "broken.png").write_bytes(b"not a image")
    done = inside("inject", colours, "--noise", "instance", "--rate", "0.5", "-o", "noisy.csv", "--json")
    describe_suspect = json.loads(done.stdout)
    assert describe_suspect["unreadable"] == 1
    assert describe_suspect["examples"] == 121
    row = next(row for row in rows_of(colours.parent / "work/noisy.csv") if "broken" in row["path"])
    assert row["label"] == row["true_label"] == "red"


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--noise", "odd", "--rate", "0.2", "-o", "x.csv"), 2, "symmetric, asymmetric, instance"),
        (("--noise", "symmetric", "--rate", "1.5", "-o", "x.csv"), 2, "between 0 and 1"),
        (("--noise", "symmetric", "--rate", "0.2", "-o", "x.txt"), 2, ".csv"),
        (("--noise", "symmetric", "--rate", "0.2", "-o", "/proc/x.csv"), 4, "cannot be written"),
    ],
)
def test_nonsense_is_refused(inside: Run, colours: Path, options: tuple[str, ...], code: int, says: str) -> None:
    done = inside("inject", colours, *options)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_dataset_itself_is_never_the_output(inside: Run, tmp_path: Path) -> None:
    paint(tmp_path / "1.png", (9, 9, 9))
    table = tmp_path / "in.csv"
    table.write_text("path,label\n1.png,a\n1.png,b\n")
    done = inside("inject", table, "--noise", "symmetric", "--rate", "0.5", "-o", table, "--force")
    assert done.returncode == 4
    assert table.read_text() == "path,label\n1.png,a\n1.png,b\n"


def test_a_table_without_its_images_is_found_out_before_the_scan(inside: Run, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("path,label\n" + "".join(f"{i}.png,{'ab'[i % 2]}\n" for i in range(20)))
    common = ("inject", tmp_path / "in.csv", "--noise", "symmetric", "--rate", "0.5", "-o", "out.csv")
    done = inside(*common)
    assert done.returncode == 3
    assert "--root" in done.stderr
    for i in range(19):
        paint(tmp_path / f"{i}.png", (1, 2, 3))
    done = inside(*common)
    assert done.returncode == 0, done.stderr
    assert "1 of 20 images are missing, such as '19.png'" in done.stderr
    again = inside("inject", "out.csv", *common[2:6], "-o", "twice.csv", "--root", tmp_path)
    assert "user_true_label" in again.stderr
