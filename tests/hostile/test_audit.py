"""What an audit of the first defence found: laundered signatures, planted plans, decoys, and everyday use."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisesieve.core import untrusted
from noisesieve.core.columns import Hashes
from noisesieve.core.documents import from_json
from noisesieve.core.errors import InputError, StateError
from noisesieve.core.files import sha256_of
from noisesieve.core.publish import PLAN, finish_publishing, publish, stage
from noisesieve.core.row_store import RowFile
from noisesieve.report.report import read_report
from noisesieve.report.run import RunFolder
from tests.conftest import QUICK, Run
from tests.hostile.attack import few_colours, forge_run, snapshot
from tests.hostile.test_files import plant_plan, write_labels
from tests.runs import make_run

SCAN = (*QUICK, "--image-size", "16", "--no-cache", "--workers", "1")


def test_the_runs_beside_a_scanned_working_folder_are_no_link(
    inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = few_colours(tmp_path / "dl/set")
    home = tmp_path / "home/set"
    (home / "checkpoint").mkdir(parents=True)
    (home / "model.safetensors").write_text("mine")
    (tmp_path / "dl/noisesieve-runs").symlink_to(tmp_path / "home")
    before = snapshot(tmp_path / "home")
    monkeypatch.chdir(data)
    assert inside("scan", ".", *SCAN).returncode == 4
    assert snapshot(tmp_path / "home") == before


@pytest.mark.parametrize("force", [(), ("--force",)], ids=str)
def test_a_folder_called_checkpoint_that_is_not_ours_is_kept(
    inside: Run, tmp_path: Path, force: tuple[str, ...]
) -> None:
    data, project = few_colours(tmp_path / "data"), tmp_path / "project"
    (project / "checkpoint").mkdir(parents=True)
    (project / "checkpoint/mine.pt").write_text("mine")
    (project / "model.safetensors").write_text("mine")
    assert inside("scan", data, "-o", project, *SCAN, *force).returncode == 4
    assert (project / "checkpoint/mine.pt").read_text() == "mine"
    assert (project / "model.safetensors").read_text() == "mine"


def test_updating_a_strangers_run_does_not_sign_it(inside: Run, tmp_path: Path) -> None:
    data = few_colours(tmp_path / "data")
    make_run(data, tmp_path / "evil", {"red/0.png": "green", "red/1.png": "green"})
    forge_run(tmp_path / "evil", lambda document: None)
    (tmp_path / "d.csv").write_text("path,decision,label\nred/0.png,keep,red\nred/1.png,accept,green\n")
    words = ("evaluate", tmp_path / "evil", "--decisions", tmp_path / "d.csv", "--update")
    assert inside(*words).returncode == 0
    known = RunFolder(tmp_path / "evil").read()
    assert known is not None
    assert not known.own
    assert "signature" not in json.loads((tmp_path / "evil/run.json").read_text())


def test_a_plan_that_somebody_else_signed_is_not_carried_out(tmp_path: Path) -> None:
    main = tmp_path / "new.csv"
    main.write_text("mine")
    plan = plant_plan(main, others=[], remove=[])
    (plan / "new.csv").write_text("theirs")
    document = json.loads((plan / PLAN).read_text())
    for seal in (None, "0" * 64, 7, "\ud800"):
        (plan / PLAN).write_text(json.dumps({**document, "seal": seal}))
        with pytest.raises(StateError, match="did not begin it here"):
            finish_publishing(main, ())
        assert main.read_text() == "mine"


def test_apply_does_not_finish_a_strangers_plan(inside: Run, tmp_path: Path) -> None:
    make_run(few_colours(tmp_path / "data"), tmp_path / "run", {"red/0.png": "green"})
    out = tmp_path / "out.csv"
    out.write_text("mine")
    (tmp_path / "out.audit.csv").write_text("mine")
    plan = plant_plan(out, others=[], remove=["out.audit.csv"])
    (plan / "out.csv").write_text("theirs")
    assert inside("apply", tmp_path / "run", "--accept-above", "0", "-o", out).returncode == 5
    assert out.read_text() == (tmp_path / "out.audit.csv").read_text() == "mine"


def test_a_set_of_another_owner_can_be_published_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network disk files may seem to belong to somebody else: what this process wrote is still put in place."""
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with stage(tmp_path / "new") as folder:
        (folder / "new").write_text("new")
        publish(folder, tmp_path / "new")
    assert (tmp_path / "new").read_text() == "new"
    assert not list(tmp_path.glob(".*"))


def test_a_decoy_beside_a_link_shows_nothing_from_outside(inside: Run, tmp_path: Path) -> None:
    """The row's name is both the literal name of a decoy and the escaped name of a link that leads out."""
    data = few_colours(tmp_path / "data")
    make_run(data, tmp_path / "evil", {"red/0.png": "green"})
    shutil.copy(data / "red/0.png", tmp_path / "secret.png")
    (data / "red/link.png").symlink_to(tmp_path / "secret.png")
    (data / "red\\x2flink.png").write_bytes(b"decoy")
    report = tmp_path / "evil/report.parquet"
    table = pq.read_table(report)
    paths = [path if path != "red/0.png" else "red\\x2flink.png" for path in table["path"].to_pylist()]
    changed = table.set_column(table.column_names.index("path"), "path", pa.array(paths))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), report)
    forge_run(tmp_path / "evil", lambda document: document["files"].update({"report.parquet": sha256_of(report)}))
    ended = inside(
        "export", tmp_path / "evil", "--to", "folder", "--files", "copy", "-o", tmp_path / "out", "--data", data
    )
    assert ended.returncode in (3, 5), ended.stderr
    assert not (tmp_path / "out").exists()


def test_apply_copies_no_dataset_that_only_a_stranger_names(inside: Run, tmp_path: Path) -> None:
    data = few_colours(tmp_path / "pictures")
    make_run(data, tmp_path / "evil", {"red/0.png": "green"})
    forge_run(tmp_path / "evil", lambda document: None)
    words = ("apply", tmp_path / "evil", "--accept-above", "0", "-o", tmp_path / "copy", "--tree", "copy")
    ended = inside(*words)
    assert ended.returncode == 3
    assert "--data" in ended.stderr
    assert not (tmp_path / "copy").exists()
    assert inside(*words, "--data", data).returncode == 0


def test_an_unfinished_run_of_a_stranger_is_not_resumed(inside: Run, tmp_path: Path) -> None:
    data, run = few_colours(tmp_path / "data"), tmp_path / "run"
    words = ("scan", data, "-o", run, *SCAN)
    assert inside(*words).returncode == 0
    (run / "checkpoint").mkdir()
    pq.write_table(pa.table({"id": ["a"]}), run / "checkpoint/rows.parquet")

    def unfinish(document: dict[str, Any]) -> None:
        document["complete"] = False
        document["files"] = {}

    forge_run(run, unfinish)
    ended = inside(*words)
    assert ended.returncode == 5
    assert "did not begin here" in ended.stderr
    assert inside(*words, "--force").returncode == 0


def test_planted_pixels_in_a_run_folder_are_not_believed(tmp_path: Path) -> None:
    import zlib

    file = tmp_path / "run/checkpoint/pixels/16/pixels.u8"
    file.parent.mkdir(parents=True, mode=0o700)
    file.write_bytes(b"\1\1")
    line = {"first": 0, "contents": ["a" * 64], "crc32": zlib.crc32(b"\1\1")}
    file.with_suffix(".chunks").write_text(json.dumps(line) + "\n")
    assert RowFile(file, shape=(2,), dtype="u1").drop_damaged(Hashes(["a" * 64])) == 1


def test_without_a_folder_for_the_key_a_private_cache_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted, "user_secret", lambda folder: None)
    file = tmp_path / "cache/16px-v1-0-pixels/pixels.u8"
    rows = np.array([[1, 1]], dtype=np.uint8)
    RowFile(file, shape=(2,), dtype="u1").append(["a" * 64], rows)
    again = RowFile(file, shape=(2,), dtype="u1")
    assert again.drop_damaged(Hashes(["a" * 64])) == 0
    assert not again.missing(Hashes(["a" * 64])).any()


def test_the_key_is_kept_on_a_disk_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    untrusted.user_secret.cache_clear()
    first = untrusted.user_secret(tmp_path / "a")
    untrusted.user_secret.cache_clear()
    assert first is not None
    assert untrusted.user_secret(tmp_path / "a") == first
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["secret"]
    assert (tmp_path / "a/secret").stat().st_mode & 0o777 == 0o600


def test_a_batch_does_not_switch_the_policy_off(inside: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = few_colours(tmp_path / "batch")
    (data / "run.json").write_text(json.dumps({"location": {"path": "/"}}))
    home = tmp_path / "home"
    home.mkdir()
    (home / "noisesieve.toml").write_text("seed = 7\n")
    monkeypatch.chdir(home)
    assert "is not read" not in inside("scan", data, "--dry-run").stderr


def test_commands_of_teamcity_are_broken_up() -> None:
    from noisesieve.core.text import printable, printable_json

    text = "##teamcity[setParameter name='x' value='y']"
    assert "##teamcity[" not in printable(text)
    assert "##teamcity[" not in printable_json([text])


def test_a_table_with_a_strange_name_does_not_write_into_the_working_folder(inside: Run, tmp_path: Path) -> None:
    table = write_labels(few_colours(tmp_path / "data")).rename(tmp_path / "data/...csv")
    ended = inside("scan", table, "--dry-run", "--json")
    assert ended.returncode == 0, ended.stderr
    assert ".." not in Path(json.loads(ended.stdout)["output"]).parts


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0] * 100_000] * 300),
        pa.array([{"a": b"x" * 200_000}] * 300, pa.struct([("a", pa.binary(200_000))])),
    ],
    ids=["lists", "fixed binary"],
)
def test_nested_columns_are_measured_before_they_are_read(
    tmp_path: Path, column: pa.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    from noisesieve.core import parquet_file

    monkeypatch.setattr(parquet_file, "SMALLEST_BUDGET", 2**24)
    rows = len(column)
    table = pa.table({"path": ["p"] * rows, "label": ["a"] * rows, "x": column})
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd")
    with pytest.raises(parquet_file.TooLarge, match="would take"):
        parquet_file.read_parquet(tmp_path / "t.parquet")


def test_a_stranger_does_not_raise_the_limit_of_pixels(inside: Run, tmp_path: Path) -> None:
    from noisesieve.commands._open_run import pixel_settings_of_run
    from noisesieve.pixels.pixel_settings import PixelSettings

    make_run(few_colours(tmp_path / "data"), tmp_path / "evil", {"red/0.png": "green"})
    forge_run(tmp_path / "evil", lambda document: document["identity"].update(max_pixels=2**40))
    assert pixel_settings_of_run(read_report(tmp_path / "evil")).max_pixels == PixelSettings.max_pixels


def test_packed_weights_and_nested_keys_are_refused_or_linear(tmp_path: Path) -> None:
    from noisesieve.learn.networks.pretrained import require_readable
    from noisesieve.sources.containers import read_index
    from noisesieve.sources.source_settings import SourceSettings

    with zipfile.ZipFile(tmp_path / "w.pt", "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("archive/data/0", bytes(2**26))
    with pytest.raises(InputError):
        require_readable(tmp_path / "w.pt")
    lines = (json.dumps({"path": f"{i}.png", "label": str(i % 2), "x": {f"k{i}": 1}}) for i in range(4000))
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    index = read_index(SourceSettings(tmp_path / "t.jsonl"))
    assert index.carried is not None
    assert index.carried["x"].type == pa.string()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"\xff\xfe", b"ok"]).cast(pa.string(), safe=False),
        pa.array([2**30, 0], pa.int32()).cast(pa.date32()),
        pa.array([0, 1], pa.int64()).cast(pa.timestamp("s", "Evil/Zone")),
    ],
    ids=["utf-8", "date", "zone"],
)
def test_cells_that_python_cannot_read_are_refused(tmp_path: Path, column: pa.Array) -> None:
    from noisesieve.sources.containers import read_index
    from noisesieve.sources.source_settings import SourceSettings

    pq.write_table(pa.table({"path": ["a", "b"], "label": ["x", "y"], "odd": column}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="odd"):
        read_index(SourceSettings(tmp_path / "t.parquet"))


@pytest.mark.parametrize("name", ["label", "waived", "trusted", "margin", "label_probability", "top_labels"])
def test_a_report_with_an_empty_cell_is_refused(inside: Run, tmp_path: Path, name: str) -> None:
    make_run(few_colours(tmp_path / "data"), tmp_path / "run", {"red/0.png": "green"})
    file = tmp_path / "run/report.parquet"
    table = pq.read_table(file)
    cells = pa.array([None, *table[name].to_pylist()[1:]], table[name].type)
    changed = table.set_column(table.column_names.index(name), table.schema.field(name), cells)
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), file)
    forge_run(tmp_path / "run", lambda document: document["files"].update({"report.parquet": sha256_of(file)}))
    ended = inside("review", tmp_path / "run")
    assert ended.returncode == 5, ended.stderr
    assert name in ended.stderr


def test_documents_have_no_half_characters_and_no_giant_numbers() -> None:
    for hint, value in ((str, "\ud800"), (int, 10**400), (float, 10**400), (list[str], ["ok", "\udfff"])):
        with pytest.raises(ValueError, match=r"."):
            from_json(hint, value)
    assert from_json(str, "größe") == "größe"


def test_ones_own_run_is_finished_explained_and_updated_as_ever(inside: Run, tmp_path: Path) -> None:
    data = few_colours(tmp_path / "data")
    words = ("scan", data, "-o", tmp_path / "run", *QUICK, "--image-size", "16")
    assert inside(*words).returncode == 0
    assert "finished already" in inside(*words).stderr
    (tmp_path / "d.csv").write_text("path,decision,label\nred/0.png,relabel,blue\n")
    decided = ("--decisions", tmp_path / "d.csv")
    assert inside("evaluate", tmp_path / "run", *decided, "--update").returncode == 0
    known = RunFolder(tmp_path / "run").read()
    assert known is not None
    assert known.own  # still signed
    assert inside("explain", tmp_path / "run", "0").returncode == 0
    assert inside("apply", tmp_path / "run", tmp_path / "d.csv", "-o", tmp_path / "n.csv").returncode == 0
