"""No file outside of what a command was told to write is moved, deleted, overwritten or read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisesieve.core.columns import Hashes
from noisesieve.core.errors import StateError
from noisesieve.core.files import MARK, sha256_of
from noisesieve.core.publish import OLD, PLAN, finish_publishing
from noisesieve.core.row_store import RowFile
from noisesieve.report.waivers import Waiver, add_waivers
from tests.conftest import QUICK, Run, paint
from tests.hostile.attack import few_colours, forge_run, snapshot
from tests.runs import make_run

SCAN = (*QUICK, "--image-size", "16", "--no-cache", "--workers", "1")


def plant_plan(main: Path, *, others: list[str], remove: list[str], mark: str | None = None) -> Path:
    """A decided publishing plan beside a file or folder, as a killed process would leave it."""
    folder = main.with_name(f".{main.name}.publish")
    (folder / OLD).mkdir(parents=True)
    (folder / MARK).write_text("made by noisesieve\n")
    (folder / PLAN).write_text(json.dumps({"mark": mark, "others": others, "remove": remove}))
    return folder


def write_labels(data: Path) -> Path:
    table = data / "labels.csv"
    rows = [f"{label}/{i}.png,{label}" for label in ("red", "green", "blue") for i in range(12)]
    table.write_text("path,label\n" + "\n".join(rows) + "\n")
    return table


# 4. Publishing plans


def test_a_reader_of_a_dataset_carries_out_no_plan(inside: Run, tmp_path: Path) -> None:
    table = write_labels(few_colours(tmp_path / "ds"))
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "labels.audit.csv").write_text("mine")
    plan = plant_plan(table, others=["labels.audit.csv"], remove=["labels.summary.json"])
    (plan / OLD).rmdir()
    (plan / OLD).symlink_to(victim)
    (plan / table.name).write_text("path,label\nred/0.png,evil\n")
    before = snapshot(tmp_path)
    for words in (("doctor", table), ("scan", table, "--dry-run"), ("check", table, "--model", tmp_path)):
        ended = inside(*words)
        assert {name: blob for name, blob in snapshot(tmp_path).items() if not name.startswith("cache/")} == before
        if words[0] != "check":
            assert ended.returncode == 0, ended.stderr
            assert ".labels.csv.publish" in ended.stdout + ended.stderr


def test_a_dry_run_deletes_no_folder(inside: Run, tmp_path: Path) -> None:
    data = few_colours(tmp_path / "dl/set")
    plant_plan(data, others=[], remove=[])
    before = snapshot(tmp_path)
    assert inside("scan", data, "--dry-run").returncode == 0
    assert snapshot(tmp_path) == before


def test_a_reader_of_a_run_carries_out_no_plan(inside: Run, tmp_path: Path) -> None:
    data = few_colours(tmp_path / "data")
    make_run(data, tmp_path / "mine", {"red/0.png": "green"})
    shutil.copytree(tmp_path / "mine", tmp_path / "evil")
    plan = plant_plan(tmp_path / "evil/report.parquet", others=["run.json"], remove=["summary.json"])
    (plan / OLD).rmdir()
    (plan / OLD).symlink_to(tmp_path / "mine")
    shutil.copy(tmp_path / "mine/run.json", plan / "run.json")
    before = snapshot(tmp_path)
    for words in (
        ("explain", "evil", "0"),
        ("review", "evil"),
        ("export", "evil", "--to", "csv"),
        ("diff", "evil", "mine"),
    ):
        ended = inside(words[0], *(tmp_path / word if word in ("evil", "mine") else word for word in words[1:]))
        assert ended.returncode == 5, ended.stderr
        assert ".report.parquet.publish" in ended.stderr
        assert snapshot(tmp_path) == before


@pytest.mark.parametrize("attack", ["linked old", "linked main", "no main", "linked other", "other owner", "no plan"])
def test_a_writer_refuses_a_strange_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str) -> None:
    home, victim = tmp_path / "home", tmp_path / "victim"
    home.mkdir()
    victim.mkdir()
    (victim / "new.audit.csv").write_text("mine")
    (home / "new.audit.csv").write_text("mine, too")
    (home / "new.csv").write_text("old")
    plan = plant_plan(home / "new.csv", others=["new.audit.csv"], remove=["new.summary.json"])
    if attack != "no main":
        (plan / "new.csv").write_text("new")
    if attack == "linked old":
        (plan / OLD).rmdir()
        (plan / OLD).symlink_to(victim)
    elif attack == "linked main":
        (plan / "new.csv").unlink()
        (plan / "new.csv").symlink_to(victim / "new.audit.csv")
    elif attack == "linked other":
        (plan / "new.audit.csv").symlink_to(victim / "new.audit.csv")
    elif attack == "other owner":
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    elif attack == "no plan":
        (plan / PLAN).unlink()
        (plan / MARK).unlink()
    if attack != "other owner":  # his signature is missing
        monkeypatch.setattr("noisesieve.core.publish.is_sealed", lambda *parts: True)
    before = {name: blob for name, blob in snapshot(tmp_path).items() if not name.startswith("cache")}
    with pytest.raises(StateError, match="cannot be put in place"):
        finish_publishing(home / "new.csv", ("new.audit.csv", "new.summary.json"))
    assert {name: blob for name, blob in snapshot(tmp_path).items() if not name.startswith("cache")} == before


def test_only_planned_names_move_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new.csv").write_text("old")
    plan = plant_plan(tmp_path / "new.csv", others=[], remove=[], mark=None)
    (plan / "new.csv").write_text("new")
    (plan / OLD / "bashrc").write_text("evil")

    def broken(self: Path, target: Path) -> Path:
        raise OSError(5, "broken disk")

    monkeypatch.setattr("noisesieve.core.publish.put_in_place", lambda new, path: broken(new, path))
    monkeypatch.setattr("noisesieve.core.publish.is_sealed", lambda *parts: True)
    with pytest.raises(Exception, match="broken disk"):
        finish_publishing(tmp_path / "new.csv", ())
    assert not (tmp_path / "bashrc").exists()
    assert (tmp_path / "new.csv").read_text() == "old"


# 5. Links in run folders, beside outputs and in caches


@pytest.mark.parametrize("name", [".lock.pid", ".lock", "checkpoint", "run.json", "report.parquet", "review.html"])
def test_a_link_in_a_run_folder_is_refused(inside: Run, tmp_path: Path, name: str) -> None:
    data, home = few_colours(tmp_path / "data"), tmp_path / "home"
    (home / "deep").mkdir(parents=True)
    for file in ("bashrc", "00000001.ckpt", "deep/00000002.ckpt", "model.ckpt"):
        (home / file).write_text("mine")
    run = tmp_path / "work/noisesieve-runs/data"
    run.mkdir(parents=True)
    (run / name).symlink_to(home if name == "checkpoint" else home / "bashrc")
    before = snapshot(home)
    for words in (("scan", data, *SCAN), ("scan", data, *SCAN, "--force")):
        ended = inside(*words)
        assert ended.returncode in (4, 5), ended.stderr
        assert name in ended.stderr
        assert snapshot(home) == before


def test_links_below_a_checkpoint_folder_are_refused(inside: Run, tmp_path: Path) -> None:
    data, home = few_colours(tmp_path / "data"), tmp_path / "home"
    home.mkdir()
    (home / "00000001.ckpt").write_text("mine")
    run = tmp_path / "run/checkpoint"
    run.mkdir(parents=True)
    (run / "pixels").symlink_to(home)
    assert inside("scan", data, "-o", tmp_path / "run", *SCAN, "--force").returncode == 4
    assert (home / "00000001.ckpt").read_text() == "mine"


@pytest.mark.parametrize("linked", ["noisesieve-runs", "noisesieve-runs/data"])
def test_a_run_folder_that_is_a_link_is_refused(inside: Run, tmp_path: Path, linked: str) -> None:
    data, home, link = few_colours(tmp_path / "data"), tmp_path / "home", tmp_path / "work" / linked
    home.mkdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(home)
    ended = inside("scan", data, *SCAN)
    assert ended.returncode == 4
    assert "is a link" in ended.stderr
    assert not list(home.iterdir())


def test_sweeping_follows_no_link_and_touches_no_file_of_others(
    inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, home = few_colours(tmp_path / "data"), tmp_path / "home"
    (home / "empty").mkdir(parents=True)
    (home / MARK).write_text("a folder of ours")
    (home / "file").write_text("mine")
    run = tmp_path / "run"
    make_run(data, run, {"red/0.png": "green"})
    for folder in (run, tmp_path):
        (folder / ".report.parquet.0123abcd.tmp").symlink_to(home)
        (folder / ".out.0123abcd.tmp").symlink_to(home)
        (folder / ".out.0123abcd.old").symlink_to(home)
        (folder / ".x.0123abcd.tmp").symlink_to(home / "empty")
    before = snapshot(home)
    assert inside("export", run, "--to", "folder", "-o", tmp_path / "out").returncode == 0
    assert inside("scan", data, "-o", run, *SCAN, "--force").returncode == 0
    assert snapshot(home) == before
    assert (home / "empty").is_dir()
    assert not (tmp_path / "out").is_symlink()


@pytest.mark.parametrize("name", ["pixels.u8", "pixels.chunks", ".lock"])
def test_a_cache_entry_writes_through_no_link(inside: Run, tmp_path: Path, name: str) -> None:
    data, victim = few_colours(tmp_path / "data"), tmp_path / "victim"
    victim.write_text("mine")
    cache = tmp_path / "shared"
    words = ("scan", data, *QUICK, "--image-size", "16", "--cache-dir", cache)
    assert inside(*words, "-o", "first").returncode == 0
    entry = next(cache.glob("*-pixels"))
    (entry / name).unlink(missing_ok=True)
    (entry / name).symlink_to(victim)
    ended = inside(*words, "-o", "second")
    assert ended.returncode == 0, ended.stderr
    assert victim.read_text() == "mine"
    shutil.rmtree(entry)
    home = tmp_path / "home"
    home.mkdir()
    entry.symlink_to(home)
    assert inside(*words, "-o", "third").returncode == 0
    assert not list(home.iterdir())
    assert inside("cache", "--clear", "--cache-dir", cache).returncode == 0
    assert entry.is_symlink()


def test_the_lock_of_waivers_is_in_no_shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert add_waivers(tmp_path / "w.csv", [Waiver("0" * 64, "a", "p", "seen", "2026-01-01")]) == 1
    assert not list(shared.iterdir())


# 6. A stranger's run


def private_photo(tmp_path: Path) -> Path:
    """A photo of the user's that no stranger should get."""
    return paint(tmp_path / "home/private/red/0.png", (9, 9, 9), seed=77)


def test_a_strangers_run_shows_no_image_from_elsewhere(inside: Run, tmp_path: Path) -> None:
    photo = private_photo(tmp_path)
    table = write_labels(few_colours(tmp_path / "sent"))
    make_run(table, tmp_path / "evil", {"red/0.png": "green"})

    def point_elsewhere(document: dict[str, Any]) -> None:
        document["location"]["root"] = str(photo.parent.parent)

    forge_run(tmp_path / "evil", point_elsewhere)
    for words in (("review",), ("export", "--to", "folder", "--files", "copy"), ("export", "--to", "huggingface")):
        ended = inside(words[0], tmp_path / "evil", *words[1:], "-o", tmp_path / "out")
        assert ended.returncode == 3, ended.stderr
        assert "name that folder: --root" in ended.stderr
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["embeddings", "predictions"])
def test_a_strangers_vectors_copy_and_show_no_file(inside: Run, tmp_path: Path, kind: str) -> None:
    """Rows with vectors have no hashes of images, so a forged run could name any file of the user's."""
    secret = tmp_path / "home/.ssh/id_ed25519"
    secret.parent.mkdir(parents=True)
    secret.write_text("-----BEGIN OPENSSH PRIVATE KEY-----")
    table = tmp_path / "home/t.csv"
    table.write_text("path,label\n" + "".join(f"{i}.png,{'ab'[i % 2]}\n" for i in range(40)))
    vectors = np.random.default_rng(0).random((40, 2))
    np.save(tmp_path / "v.npy", vectors / vectors.sum(axis=1, keepdims=True))
    words = ("--classes", "a,b") if kind == "predictions" else ("--epochs", "3")
    made = inside("scan", table, f"--{kind}", tmp_path / "v.npy", *words, "-o", tmp_path / "evil")
    assert made.returncode == 0, made.stderr
    report = tmp_path / "evil/report.parquet"
    schema = pq.read_table(report).schema
    rows = pq.read_table(report)
    rows = rows.set_column(rows.column_names.index("path"), "path", pa.array([".ssh/id_ed25519"] * 40))
    table.write_text("path,label\n" + "".join(f".ssh/id_ed25519,{'ab'[i % 2]}\n" for i in range(40)))
    names = [f".ssh/id_ed25519{f'#{i}' if i else ''}" for i in range(40)]
    rows = rows.set_column(rows.column_names.index("id"), "id", pa.array(names))
    pq.write_table(rows.cast(schema).replace_schema_metadata(schema.metadata), report)

    def rehash(document: dict[str, Any]) -> None:
        document["files"]["report.parquet"] = sha256_of(report)

    forge_run(tmp_path / "evil", rehash)
    out = tmp_path / "out"
    for options in ((), ("--data", table)):
        for files in ("copy", "link"):
            ended = inside(
                *("export", tmp_path / "evil", "--to", "folder", "--only", "all", "--files", files, "--force"),
                *("-o", out, *options),
            )
            assert "OPENSSH" not in "".join(p.read_text() for p in out.rglob("*") if p.is_file() and p.name != MARK)
            assert ended.returncode == (0 if options else 3), ended.stderr
    assert inside("review", tmp_path / "evil").returncode == 0


def test_the_paths_of_ones_own_run_still_count(inside: Run, tmp_path: Path) -> None:
    photos = few_colours(tmp_path / "photos")
    table = tmp_path / "labels.csv"
    write_labels(photos).rename(table)
    words = ("scan", table, "--root", photos, "-o", tmp_path / "run", *QUICK, "--image-size", "16")
    assert inside(*words, "--cache-dir", tmp_path / "own").returncode == 0
    assert inside("export", tmp_path / "run", "--to", "folder", "--only", "all").returncode == 0
    assert inside("review", tmp_path / "run").returncode == 0
    again = inside(*words, "--cache-dir", tmp_path / "own")
    assert "finished already" in again.stderr
    assert "not signed" not in again.stderr
    forge_run(tmp_path / "run", lambda document: None)
    assert "not signed by you" in inside(*words, "--cache-dir", tmp_path / "own").stderr


def test_a_strangers_cache_folder_is_not_used(inside: Run, tmp_path: Path) -> None:
    data = few_colours(tmp_path / "data")
    make_run(data, tmp_path / "evil", {"red/0.png": "green"})

    def name_a_cache(document: dict[str, Any]) -> None:
        document["location"]["cache"] = str(tmp_path / "planted")

    forge_run(tmp_path / "evil", name_a_cache)
    assert inside("review", tmp_path / "evil").returncode == 0
    words = ("apply", tmp_path / "evil", "--accept-above", "0.5", "-o", tmp_path / "new.csv", "--data", data)
    assert inside(*words).returncode == 0
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
@pytest.mark.parametrize("name", ["run.json", "report.parquet", "summary.json"])
def test_only_regular_files_of_a_run_are_read(inside: Run, tmp_path: Path, kind: str, name: str) -> None:
    make_run(few_colours(tmp_path / "data"), tmp_path / "run", {"red/0.png": "green"})
    replace_by(tmp_path / "run" / name, kind)
    for words in (("review", tmp_path / "run"), ("explain", tmp_path / "run", "0")):
        ended = inside(*words)
        assert ended.returncode == 5, ended.stderr
        assert name in ended.stderr


def replace_by(path: Path, kind: str) -> None:
    """Put something that is not a regular file in the place of one."""
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["fifo", "device"])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.parquet", "t.json"])
def test_only_regular_tables_are_read(inside: Run, tmp_path: Path, kind: str, name: str) -> None:
    replace_by(tmp_path / name, kind)
    ended = inside("doctor", tmp_path / name)
    assert ended.returncode == 3, ended.stderr
    assert "not a regular file" in ended.stderr


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_only_regular_decisions_vectors_weights_and_models_are_read(inside: Run, tmp_path: Path, kind: str) -> None:
    data = few_colours(tmp_path / "data")
    table = write_labels(data)
    make_run(data, tmp_path / "run", {"red/0.png": "green"})
    for name in ("d.csv", "v.npy", "v.npz", "v.parquet", "w.pth", "w.safetensors", "waivers.csv"):
        replace_by(tmp_path / name, kind)
    replace_by(tmp_path / "run/model.json", kind)
    for words in (
        ("apply", tmp_path / "run", tmp_path / "d.csv", "-o", tmp_path / "new.csv"),
        *(("scan", table, "--embeddings", tmp_path / f"v.{ending}") for ending in ("npy", "npz", "parquet")),
        *(("scan", data, "--weights", tmp_path / f"w.{ending}") for ending in ("pth", "safetensors")),
        ("scan", data, "--waivers", tmp_path / "waivers.csv", *SCAN, "-o", tmp_path / "other"),
        ("check", data, "--model", tmp_path / "run"),
    ):
        assert inside(*words).returncode in (3, 5), words


# 7. Links out of image folders, and colliding names


@pytest.mark.parametrize("target", ["file", "folder"])
def test_a_link_that_leaves_an_image_folder_is_refused(inside: Run, tmp_path: Path, target: str) -> None:
    data, photo = few_colours(tmp_path / "data"), private_photo(tmp_path)
    link = data / "red" / ("zz.png" if target == "file" else "zz")
    link.symlink_to(photo if target == "file" else photo.parent)
    ended = inside("scan", data, *SCAN, "-o", tmp_path / "run")
    assert ended.returncode == 3
    assert "leads out of the dataset's folder" in ended.stderr
    assert "--allow-outside" in ended.stderr
    words = ("-o", tmp_path / "run", "--allow-outside")
    assert inside("scan", data, *SCAN, *words).returncode == 0
    assert inside("review", tmp_path / "run").returncode == 0  # recorded in one's own run
    forge_run(tmp_path / "run", lambda document: None)
    refused = inside("apply", tmp_path / "run", "--accept-above", "0", "-o", tmp_path / "copy", "--tree", "copy")
    assert refused.returncode == 3
    assert not (tmp_path / "copy").exists()


def test_the_corrected_tree_of_links_is_scanned_with_the_command_that_is_printed(inside: Run, tmp_path: Path) -> None:
    data = few_colours(tmp_path / "data")
    make_run(data, tmp_path / "run", {"red/0.png": "green"})
    words = ("apply", tmp_path / "run", "--accept-above", "0", "-o", tmp_path / "tree", "--tree", "link")
    ended = inside(*words)
    assert ended.returncode == 0
    assert "--allow-outside" in ended.stdout
    assert inside("doctor", tmp_path / "tree").returncode == 3
    assert inside("doctor", tmp_path / "tree", "--allow-outside").returncode == 0


def test_an_export_writes_every_row_also_where_names_collide(inside: Run, tmp_path: Path) -> None:
    for i, name in enumerate(("x/a-row2.png", "y/a.png", "z/a.png")):
        paint(tmp_path / "data/red" / name, (200, 40, 40), seed=i)
    paint(tmp_path / "data/blue/b.png", (40, 40, 200))
    make_run(tmp_path / "data", tmp_path / "run")
    words = ("--to", "folder", "--only", "all", "--files", "copy", "-o", tmp_path / "out", "--json")
    assert json.loads(inside("export", tmp_path / "run", *words).stdout)["rows"] == 4
    assert len(list((tmp_path / "out").rglob("*.png"))) == 4


# 8. A shared cache


def test_entries_of_another_user_are_not_used_and_new_ones_are_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cache/16px-v1-0-pixels/pixels.u8"
    rows = RowFile(file, shape=(2,), dtype="u1")
    rows.append(["a" * 64, "b" * 64], np.array([[1, 1], [2, 2]], dtype=np.uint8))
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in file.parent.iterdir()} == {0o600}
    assert not RowFile(file, shape=(2,), dtype="u1").missing(Hashes(["a" * 64])).any()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    other = RowFile(file, shape=(2,), dtype="u1")
    assert other.missing(Hashes(["a" * 64])).all()
    with pytest.raises(PermissionError):
        other.append(["c" * 64], np.array([[3, 3]], dtype=np.uint8))


def test_rows_are_bound_to_their_contents(tmp_path: Path) -> None:
    """A second user who can write to the cache can swap rows and make any checksum anew, but not the signature."""
    file = tmp_path / "cache/16px-v1-0-pixels/pixels.u8"
    contents = ["a" * 64, "b" * 64]
    RowFile(file, shape=(2,), dtype="u1").append(contents, np.array([[1, 1], [2, 2]], dtype=np.uint8))
    index = file.with_suffix(".chunks")
    line = json.loads(index.read_text())
    index.write_text(json.dumps({**line, "contents": contents[::-1]}) + "\n")
    assert RowFile(file, shape=(2,), dtype="u1").drop_damaged(Hashes(contents)) == 2
    index.write_text(json.dumps(line) + "\n")
    assert RowFile(file, shape=(2,), dtype="u1").drop_damaged(Hashes(contents)) == 0
    other = tmp_path / "cache/24px-v1-0-pixels/pixels.u8"  # another entry's rows do not count either
    shutil.copytree(file.parent, other.parent)
    assert RowFile(other, shape=(2,), dtype="u1").drop_damaged(Hashes(contents)) == 2


def test_rows_of_an_earlier_version_count_where_nobody_else_can_write(tmp_path: Path) -> None:
    import zlib

    file = tmp_path / "16px-v1-0-pixels/pixels.u8"
    file.parent.mkdir(mode=0o755)
    file.write_bytes(b"\1\1")
    line = {"first": 0, "contents": ["a" * 64], "crc32": zlib.crc32(b"\1\1")}
    file.with_suffix(".chunks").write_text(json.dumps(line) + "\n")
    assert RowFile(file, shape=(2,), dtype="u1").drop_damaged(Hashes(["a" * 64])) == 0
    file.parent.chmod(0o777)
    assert RowFile(file, shape=(2,), dtype="u1").drop_damaged(Hashes(["a" * 64])) == 1


@pytest.mark.parametrize("line", ["[]", "{}", '{"first": 1e999, "contents": [], "crc32": 1}', "[" * 10**5, "null", "x"])
def test_strange_lines_of_a_cache_index_are_ignored(tmp_path: Path, line: str) -> None:
    file = tmp_path / "16px-v1-0-pixels/pixels.u8"
    file.parent.mkdir()
    file.write_bytes(b"\1\1")
    file.with_suffix(".chunks").write_text(line + "\n")
    assert RowFile(file, shape=(2,), dtype="u1").missing(Hashes(["a" * 64])).all()
