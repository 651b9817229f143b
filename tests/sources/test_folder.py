"""Image folders as they are found in the wild."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from noisesieve.core.columns import Texts
from noisesieve.core.errors import InputError, UsageError
from noisesieve.core.records import Index
from noisesieve.sources.containers import SOURCES, stratified
from noisesieve.sources.containers import read_index as read
from noisesieve.sources.source_settings import SourceSettings
from tests.conftest import paint


def index(root: Path, **options: object) -> Index:
    return read(SourceSettings(path=root, **options))  # type: ignore[arg-type]


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for path in ("cat/2.png", "cat/10.png", "cat/deep/er/1.png", "dog/1.JPG"):
        paint(root / path, (1, 2, 3))
    return root


def test_classes_are_folders_and_order_is_natural(pets: Path) -> None:
    found = index(pets)
    assert found.ids == ["cat/2.png", "cat/10.png", "cat/deep/er/1.png", "dog/1.JPG"]
    assert found.labels == ["cat", "cat", "cat", "dog"]


def test_hidden_empty_and_foreign_things_are_skipped_and_named(pets: Path) -> None:
    paint(pets / ".ipynb_checkpoints/x.png", (0, 0, 0))
    paint(pets / "cat/.hidden.png", (0, 0, 0))
    (pets / "bird").mkdir()
    (pets / "dog/notes.txt").write_text("woof")
    found = index(pets)
    assert set(found.labels) == {"cat", "dog"}
    notes = "\n".join(found.notes)
    for name in (".ipynb_checkpoints", "cat/.hidden.png", "bird", "dog/notes.txt"):
        assert name in notes


def test_train_and_test_folders_become_splits(pets: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        for path in ("cat/1.png", "dog/1.png"):
            paint(tmp_path / "data" / split / path, (1, 2, 3))
    found = index(tmp_path / "data")
    assert set(found.labels) == {"cat", "dog"}
    assert found.splits == ["test", "test", "train", "train"]
    assert index(tmp_path / "data", split="train").ids == ["train/cat/1.png", "train/dog/1.png"]
    with pytest.raises(UsageError, match="test, train"):
        index(tmp_path / "data", split="nope")


def test_folders_without_images_beside_splits_do_no_harm(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for path in ("cat/1.png", "dog/1.png"):
            paint(tmp_path / "data" / split / path, (1, 2, 3))
    (tmp_path / "data/docs").mkdir()
    found = index(tmp_path / "data")
    assert found.splits == ["test", "test", "train", "train"]
    assert "docs" in "".join(found.notes)


def test_classes_beside_folders_named_like_splits_lose_nothing(tmp_path: Path) -> None:
    paths = ("train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png", "cat/1.png", "dog/1.png")
    for path in paths:
        paint(tmp_path / "data" / path, (1, 2, 3))
    paint(tmp_path / "data/stray.png", (1, 2, 3))
    found = index(tmp_path / "data")
    assert sorted(found.ids) == sorted(paths)
    assert set(found.labels) == {"train", "test", "cat", "dog"}
    assert "stray.png" in "".join(found.notes)


def test_options_of_tables_are_refused_for_a_folder(pets: Path) -> None:
    with pytest.raises(UsageError, match="--trusted-column is for tables"):
        index(pets, trusted_column="ok")


def test_classes_named_like_splits_with_other_content_stay_classes(tmp_path: Path) -> None:
    for path in ("test/1.png", "val/1.png"):
        paint(tmp_path / "rails" / path, (1, 2, 3))
    assert index(tmp_path / "rails").labels == ["test", "val"]


def test_a_link_in_a_circle_gives_each_file_once(pets: Path) -> None:
    (pets / "cat/loop").symlink_to("..")
    (pets / "cat/self").symlink_to("self")
    (pets / "again").symlink_to(pets / "dog")
    assert len(index(pets)) == 4


@pytest.mark.parametrize("target", ["/", ".."])
def test_a_link_above_the_root_is_not_followed(pets: Path, target: str) -> None:
    before = index(pets).ids
    (pets / "cat/up").symlink_to("/" if target == "/" else pets.parent)
    again = index(pets)
    assert again.ids == before
    assert any("or above it, skipped: cat/up" in note for note in again.notes)


def test_a_class_folder_may_be_a_link_to_elsewhere(pets: Path, tmp_path: Path) -> None:
    paint(tmp_path / "elsewhere/1.png", (1, 2, 3))
    (pets / "fish").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="leads out"):
        index(pets)
    assert "fish/1.png" in index(pets, allow_outside=True).ids


def test_a_fifo_keeps_its_row(pets: Path) -> None:
    os.mkfifo(pets / "cat/pipe.png")
    assert "cat/pipe.png" in index(pets).ids


@pytest.mark.skipif(sys.platform == "darwin", reason="the file system refuses such names")
def test_names_that_are_not_text_are_escaped_and_found_again(pets: Path) -> None:
    raw = os.fsencode(pets / "cat") + b"/\xff\n.png"
    with open(raw, "wb") as file:
        file.write((pets / "cat/2.png").read_bytes())
    found = index(pets)
    row = next(i for i, name in enumerate(found.ids) if "xff" in name)
    assert found.ids[row] == "cat/\\xff\\x0a.png"
    assert os.fsencode(found.locate(row).file) == raw


def test_a_finished_run_is_never_a_class(pets: Path) -> None:
    paint(pets / "run/thumb/1.png", (1, 2, 3))
    (pets / "run/run.json").write_text("{}")
    assert set(index(pets).labels) == {"cat", "dog"}


@pytest.mark.parametrize(
    ("files", "hint"),
    [
        ([], "no images"),
        (["1.png"], "no class folder"),
        (["labels.csv"], "It contains a table"),
        (["train/cat/1.png"], "Did you mean"),
        (["images/1.png", "labels/1.txt"], "detection"),
    ],
)
def test_what_is_no_image_folder_is_refused_with_the_next_step(tmp_path: Path, files: list[str], hint: str) -> None:
    root = tmp_path / "data"
    root.mkdir()
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    with pytest.raises(InputError, match=hint):
        index(root)


def test_limit_takes_every_class_by_its_share_and_the_seed_decides() -> None:
    labels = Texts(["a"] * 600 + ["b"] * 300 + ["c"] * 99 + ["d"])
    rows = stratified(labels, 100, seed=0)
    assert len(rows) == 100
    assert sorted(rows) == list(rows)
    taken = [labels[i] for i in rows]
    assert {name: taken.count(name) for name in "abcd"} == {"a": 60, "b": 30, "c": 9, "d": 1} or taken.count("c") == 10
    assert list(stratified(labels, 100, seed=0)) == list(rows)
    assert list(stratified(labels, 100, seed=1)) != list(rows)


def test_every_source_is_registered_under_its_name() -> None:
    assert set(SOURCES) == {"folder", "csv", "tsv", "jsonl", "parquet"}
