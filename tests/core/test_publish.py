"""A set of files is the old one or the new one, wherever its publication is killed or fails."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from noisesieve.core import files
from noisesieve.core.errors import OutputError, StateError
from noisesieve.core.publish import finish_publishing, publish, stage

REMOVED = "page.html"
KNOWN = ("audit.csv", "summary.json", REMOVED)


@pytest.fixture(autouse=True)
def key_elsewhere(own_cache: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's key is not in the folder that these tests look at."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


class KilledError(BaseException):
    """Stands for kill -9: nothing in the product catches it."""


@pytest.fixture(params=["exchange", "two renames"], autouse=True)
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "two renames":
        monkeypatch.setattr("noisesieve.core.files._exchange", lambda one, other: False)


def _publish(main: Path, text: str, *, tree: bool = False) -> None:
    with stage(main) as folder:
        if tree:
            (folder / main.name).mkdir()
            (folder / main.name / "image").write_text(text)
        else:
            (folder / main.name).write_text(text)
        (folder / "audit.csv").write_text(text)
        (folder / "summary.json").write_text(text)
        publish(folder, main, remove=[REMOVED])


def _seen(home: Path) -> dict[str, str]:
    """Return the visible files with their content."""
    found = [path for path in sorted(home.rglob("*")) if path.is_file() and ".publish" not in str(path)]
    return {path.name: path.read_text() for path in found if not path.name.startswith(".") and ".tmp" not in str(path)}


def _interrupted(home: Path, error: BaseException, *, tree: bool) -> Iterator[int]:
    """Publish a new set over an old one, interrupted at each rename in turn; yields the number of the rename."""
    main = home / "new"
    for number in range(1, 50):
        _publish(main, "old", tree=tree)
        (home / REMOVED).write_text("old")
        left = number

        def replace(self: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if left == 0:
                raise error
            os.replace(self, target)
            return target

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            try:
                _publish(main, "new", tree=tree)
            except (KilledError, OutputError):
                pass
            else:
                return
        yield number
        finish_publishing(main, KNOWN)


@pytest.mark.parametrize("tree", [False, True])
def test_a_killed_publication_never_mixes_two_sets_and_is_finished_by_the_next_writer(
    tmp_path: Path, tree: bool
) -> None:
    name = "image" if tree else "new"
    for number in _interrupted(tmp_path, KilledError(), tree=tree):
        seen = _seen(tmp_path)
        assert len(set(seen.values())) <= 1, (number, seen)
        decided = list(tmp_path.glob(".*.publish"))
        finish_publishing(tmp_path / "new", KNOWN)
        seen = _seen(tmp_path)
        whole = {name, "audit.csv", "summary.json"}
        assert seen == (dict.fromkeys(whole, "new") if decided else dict.fromkeys({*whole, REMOVED}, "old"))
    assert number > 3


@pytest.mark.parametrize("tree", [False, True])
def test_an_error_while_publishing_brings_the_old_set_back(tmp_path: Path, tree: bool) -> None:
    name = "image" if tree else "new"
    for number in _interrupted(tmp_path, OSError(28, "No space left on device"), tree=tree):
        assert _seen(tmp_path) == dict.fromkeys({name, "audit.csv", "summary.json", REMOVED}, "old"), number
        assert not list(tmp_path.glob(".*"))


def test_a_set_that_somebody_else_made_moves_no_other_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    hostile = data / ".t.csv.publish"
    hostile.mkdir(parents=True)
    (tmp_path / "victim").write_text("mine")
    (data / "sibling").write_text("mine")
    for plan in ({"others": ["../victim"], "remove": []}, {"others": [], "remove": ["sibling"]}):
        (hostile / "publish.json").write_text(json.dumps({"mark": None, **plan}))
        with pytest.raises(StateError, match="did not begin it here"):
            finish_publishing(data / "t.csv", ("t.audit.csv",))
    assert (tmp_path / "victim").read_text() == (data / "sibling").read_text() == "mine"
    finish_publishing(tmp_path / ("x" * 250), ())  # a name that is too long for a folder beside it


def test_a_first_set_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        if target.name == "summary.json":
            raise OSError(28, "No space left on device")
        os.replace(self, target)
        return target

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        _publish(tmp_path / "new", "new")
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_was_writing_is_swept_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    (tmp_path / ".new.0123abcd.tmp").mkdir()
    (tmp_path / ".new.0123abcd.tmp" / files.MARK).write_text("")
    (tmp_path / ".new.4567abcd.tmp").write_text("half")
    with stage(tmp_path / "new") as living:
        _publish(tmp_path / "new", "new")
        assert living.exists()
        assert {path.name for path in tmp_path.glob(".*")} == {living.name}
    assert not list(tmp_path.glob(".*"))
    (tmp_path / ".new.4567abcd.tmp").write_text("half")
    with files.atomic_write(tmp_path / "new") as file:
        file.write(b"newer")
        with files.atomic_write(tmp_path / "new") as other:
            other.write(b"new")
        assert len(list(tmp_path.glob(".*"))) == 1
    assert (tmp_path / "new").read_text() == "newer"


@pytest.mark.parametrize("left", [("old", "mark"), ("mark",), ()], ids=str)
def test_what_a_killed_removal_leaves_is_removed_by_the_next_writer(tmp_path: Path, left: tuple[str, ...]) -> None:
    _publish(tmp_path / "new", "new")
    folder = tmp_path / ".new.publish"
    folder.mkdir()
    if "old" in left:
        (folder / ".noisesieve-old").mkdir()
        (folder / ".noisesieve-old/checkpoint").write_text("old")
    if "mark" in left:
        (folder / files.MARK).write_text("made by noisesieve")
    finish_publishing(tmp_path / "new", KNOWN)
    assert not folder.exists()
    assert (tmp_path / "new").read_text() == "new"
