"""Decoding in a pool of processes: rows never shift, workers may die, pixels are kept and found again."""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from PIL import Image

from noisesieve.core.errors import InputError, Stopped
from noisesieve.core.progress import NullWatcher, Session
from noisesieve.core.records import FileFacts, ImageLocation, Index
from noisesieve.pixels import task_queue
from noisesieve.pixels.decoded import Decoded
from noisesieve.pixels.decoder import Decoder
from noisesieve.pixels.fetch import fetch
from noisesieve.pixels.pixel_cache import CachedPixels, cache_folder
from noisesieve.pixels.pixel_settings import PixelSettings
from noisesieve.pixels.task_queue import ImageTask, Pass
from noisesieve.pixels.transfer import load_pixels, save_pixels
from noisesieve.pixels.worker_pool import WorkerPool, _WorkerThread
from noisesieve.sources.containers import read_index
from noisesieve.sources.source_settings import SourceSettings
from tests.conftest import paint


def go() -> None:
    """Nobody asks to stop."""


def index_of_run(root: Path) -> Index:
    return read_index(SourceSettings(path=root))


def settings(tmp_path: Path) -> PixelSettings:
    return PixelSettings(cache_dir=tmp_path / "pixels", workers=2)


def load(index: Index, chosen: PixelSettings, tmp_path: Path, size: int = 16) -> Decoded:
    with Decoder(chosen, Session()) as decoder:
        return decoder.decode(index, decoder.inspect(index), size=size, scratch=tmp_path / "scratch")


def inspect_files(index: Index, chosen: PixelSettings) -> FileFacts:
    with Decoder(chosen, Session()) as decoder:
        return decoder.inspect(index)


def decode(
    index: Index, facts: FileFacts, chosen: PixelSettings, session: Session, *, size: int, scratch: Path
) -> Decoded:
    with Decoder(chosen, session) as decoder:
        return decoder.decode(index, facts, size=size, scratch=scratch)


def all_pixels(decoded: Decoded) -> np.ndarray:
    return next(decoded.pixels.batches([np.arange(len(decoded.pixels))]))


def test_an_unreadable_image_keeps_its_row_and_the_others_stay_where_they_are(colours: Path, tmp_path: Path) -> None:
    before = all_pixels(load(index_of_run(colours), settings(tmp_path), tmp_path))
    (colours / "green/5.png").write_bytes(b"")
    (colours / "blue/1000.png").symlink_to("nowhere")
    os.mkfifo(colours / "red/pipe.png")
    index = index_of_run(colours)
    decoded = load(index, settings(tmp_path), tmp_path)
    status = dict(zip(index.ids, decoded.file_facts.status, strict=True))
    assert status["green/5.png"] == "the file is empty"
    assert status["blue/1000.png"] == "missing file"
    assert status["red/pipe.png"] == "not a regular file"
    assert len(decoded.rows) == 119
    expected = {name: image for name, image in zip(sorted_ids(colours), before, strict=True) if name != "green/5.png"}
    for row, image in zip(decoded.rows.tolist(), all_pixels(decoded), strict=True):
        assert (image == expected[index.ids[row]]).all()
    assert index.ids.index("green/5.png") not in decoded.rows


def sorted_ids(colours: Path) -> list[str]:
    return [name for name in index_of_run(colours).ids if name not in ("blue/1000.png", "red/pipe.png")]


def test_pixels_are_reused_after_a_move_and_for_a_part(colours: Path, tmp_path: Path) -> None:
    first = load(index_of_run(colours), settings(tmp_path), tmp_path)
    assert not first.reused
    shutil.move(colours / "red/1.png", colours / "blue/moved.png")  # a relabelled image
    assert load(index_of_run(colours), settings(tmp_path), tmp_path).reused
    (colours / "red/2.png").unlink()
    assert load(index_of_run(colours), settings(tmp_path), tmp_path).reused


def test_changed_content_and_another_size_are_decoded_anew(colours: Path, tmp_path: Path) -> None:
    load(index_of_run(colours), settings(tmp_path), tmp_path)
    assert not load(index_of_run(colours), settings(tmp_path), tmp_path, size=24).reused
    stamp = (colours / "red/1.png").stat()
    paint(colours / "red/1.png", (1, 1, 1), seed=77)
    os.utime(colours / "red/1.png", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # the clock is not the content
    assert not load(index_of_run(colours), settings(tmp_path), tmp_path).reused


def test_streamed_pixels_are_the_cached_ones(colours: Path, tmp_path: Path) -> None:
    index = index_of_run(colours)
    cached = load(index, settings(tmp_path), tmp_path)
    streamed = load(index, replace(settings(tmp_path), cache_budget=0), tmp_path)
    order = [np.array([3, 1, 2]), np.arange(100), np.array([119]), *(np.array([i]) for i in range(9))]
    for left, right in zip(cached.pixels.batches(order), streamed.pixels.batches(order), strict=True):
        assert (left == right).all()


def test_a_file_that_changes_while_streaming_stops_the_run(colours: Path, tmp_path: Path) -> None:
    streamed = load(index_of_run(colours), replace(settings(tmp_path), cache_budget=0), tmp_path)
    paint(colours / "blue/0.png", (1, 1, 1), seed=78)
    with pytest.raises(InputError, match=r"blue/0.png.*content changed.*resumes"):
        list(streamed.pixels.batches([np.arange(120)]))


def test_pixels_survive_the_way_to_another_rank(colours: Path, tmp_path: Path) -> None:
    for budget in (0, 10**9):
        decoded = load(index_of_run(colours), replace(settings(tmp_path), cache_budget=budget), tmp_path)
        save_pixels(decoded.pixels, tmp_path / str(budget))
        again = load_pixels(tmp_path / str(budget))
        assert (next(again.batches([np.arange(9)])) == all_pixels(decoded)[:9]).all()


def test_one_more_image_decodes_one_image(colours: Path, tmp_path: Path) -> None:
    load(index_of_run(colours), settings(tmp_path), tmp_path)
    paint(colours / "red/new.png", (200, 40, 40), seed=555)
    index = index_of_run(colours)
    file_facts = inspect_files(index, settings(tmp_path))
    counted = Counting()
    decode(index, file_facts, settings(tmp_path), Session(counted), size=16, scratch=tmp_path / "scratch")
    assert counted.totals == {"decoding": 1}


class Counting(NullWatcher):
    """Remembers how much work each stage had."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}

    def stage(self, name: str, total: int) -> None:
        self.totals[name] = total


def test_a_stopped_decode_goes_on_where_it_was(colours: Path, tmp_path: Path) -> None:
    index = index_of_run(colours)
    chosen = replace(settings(tmp_path), workers=1)
    file_facts = inspect_files(index, chosen)
    left = iter(range(50))

    def stop() -> Stopped | None:
        return Stopped("enough", exit_code=143) if next(left, None) is None else None

    with pytest.raises(Stopped):
        decode(index, file_facts, chosen, Session(stop=stop), size=16, scratch=tmp_path / "scratch")
    counted = Counting()
    decoded = decode(index, file_facts, chosen, Session(counted), size=16, scratch=tmp_path / "scratch")
    assert counted.totals["decoding"] <= 75
    fresh = load(index, replace(chosen, cache=False), tmp_path)
    assert (all_pixels(decoded) == all_pixels(fresh)).all()


def test_a_failure_that_passes_is_not_remembered(colours: Path, tmp_path: Path) -> None:
    index = index_of_run(colours)
    file_facts = inspect_files(index, settings(tmp_path))
    (colours / "red/3.png").rename(tmp_path / "away.png")
    first = decode(index, file_facts, settings(tmp_path), Session(), size=16, scratch=tmp_path / "s")
    assert first.file_facts.status[index.ids.index("red/3.png")] == "missing file"
    (tmp_path / "away.png").rename(colours / "red/3.png")
    assert len(load(index, settings(tmp_path), tmp_path).rows) == 120


def test_a_damaged_entry_is_replaced(colours: Path, tmp_path: Path) -> None:
    index = index_of_run(colours)
    load(index, settings(tmp_path), tmp_path)
    entry = next((tmp_path / "pixels").glob("16px-*"))
    (entry / "pixels.u8").write_bytes(b"short")
    assert not load(index, settings(tmp_path), tmp_path).reused
    assert load(index, settings(tmp_path), tmp_path).reused


def test_a_cache_that_cannot_be_written_costs_only_the_cache(colours: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    decoded = load(index_of_run(colours), replace(settings(tmp_path), cache_dir=tmp_path / "file/cache"), tmp_path)
    assert len(decoded.rows) == 120


def test_a_corrupt_page_of_a_table_is_unreadable_rows(tmp_path: Path) -> None:
    image = paint(tmp_path / "x.png", (1, 2, 3)).read_bytes()
    table = pa.table({"image": [image] * 40, "label": ["a", "b"] * 20})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=20, compression="zstd", use_dictionary=False)
    content = bytearray((tmp_path / "t.parquet").read_bytes())
    column = pq.ParquetFile(tmp_path / "t.parquet").metadata.row_group(1).column(0)
    start = column.data_page_offset
    content[start : start + 40] = b"\xff" * 40
    (tmp_path / "t.parquet").write_bytes(content)
    file_facts = inspect_files(index_of_run(tmp_path / "t.parquet"), settings(tmp_path))
    assert file_facts.readable.sum() == 20
    assert "cannot be read from the table" in file_facts.status[30]


def test_without_a_cache_nothing_is_kept(colours: Path, tmp_path: Path) -> None:
    decoded = load(index_of_run(colours), replace(settings(tmp_path), cache=False), tmp_path)
    assert len(all_pixels(decoded)) == 120
    assert not (tmp_path / "pixels").exists()


def test_a_killed_worker_costs_nothing(colours: Path, tmp_path: Path) -> None:
    index = index_of_run(colours)
    tasks = [ImageTask(i, index.locate(i)) for i in range(len(index))]
    with WorkerPool(1, max_pixels=2**26, seconds=60) as pool:
        answers = []
        for answer in pool.run(tasks, Pass(16)):
            answers.append(answer)
            if len(answers) == 3:
                process = pool._workers[0]._process
                assert process is not None
                os.kill(process.pid, signal.SIGKILL)
    assert sorted(answer.key for answer in answers) == list(range(120))
    assert {answer.status for answer in answers} == {"ok"}


def test_a_worker_that_hangs_is_replaced(colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of_run(colours)
    tasks = [ImageTask(i, index.locate(i)) for i in range(40)]
    with WorkerPool(1, max_pixels=2**26, seconds=3600) as pool:
        pool.submit(tasks[:1], Pass(16))
        pool.result()
        worker = pool._workers[0]
        assert worker._process is not None
        os.kill(worker._process.pid, signal.SIGSTOP)
        pool.submit(tasks, Pass(16))
        while worker._since is None:  # until it has an image
            time.sleep(0.01)
        worker._since = float("-inf")  # which it got long ago
        answers = [pool.result() for _ in tasks]
    assert {answer.status for answer in answers} == {"ok"}  # the image was tried again


def test_an_image_that_crashes_every_worker_is_named(colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def start(worker: _WorkerThread) -> subprocess.Popen[bytes]:
        started.append(1)
        code = "import sys; sys.stdin.readline()"  # ends when it has its tasks
        return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(_WorkerThread, "_start_process", start)
    index = index_of_run(colours)
    with WorkerPool(1, max_pixels=2**26, seconds=60) as pool:
        answers = list(pool.run([ImageTask(i, index.locate(i)) for i in range(2)], Pass(16)))
    assert {answer.status for answer in answers} == {"decoding crashed (exit code 0)"}
    assert len(started) == 4


def test_what_is_decoded_ahead_is_read_once_and_is_the_same(colours: Path, tmp_path: Path) -> None:
    whole = (colours / "red/5.png").read_bytes()
    (colours / "red/5.png").write_bytes(whole[: len(whole) // 2])  # its header is fine
    (colours / "red/6.png").write_bytes(b"")
    index, plain = index_of_run(colours), PixelSettings(cache=False, workers=2)
    facts = inspect_files(index, plain)
    expected = decode(index, facts, plain, Session(), size=16, scratch=tmp_path / "scratch")
    for _ in range(2):  # the second time everything is in the cache
        counted = Counting()
        with Decoder(settings(tmp_path), Session(counted)) as decoder:
            again = decoder.read(index, lambda sides: int(sides.max()))
            assert (again.sha256, again.status) == (facts.sha256, facts.status)
            found = decoder.decode(index, again, size=16, scratch=tmp_path / "s")
        assert counted.totals == {"reading": 120}
        assert found.file_facts.status == expected.file_facts.status
        assert (all_pixels(found) == all_pixels(expected)).all()


def test_pixels_that_are_stored_need_no_free_space(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = index_of_run(colours)
    with Decoder(settings(tmp_path), Session()) as decoder:
        facts = decoder.read(index, lambda _: 16)
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        found = decoder.decode(index, facts, size=16, scratch=tmp_path / "s")
    assert isinstance(found.pixels, CachedPixels)
    assert not found.reused
    with Decoder(settings(tmp_path), Session()) as decoder:
        warm = decoder.decode(index, decoder.read(index, lambda _: 16), size=16, scratch=tmp_path / "s")
    assert isinstance(warm.pixels, CachedPixels)
    assert warm.reused


def test_a_wrong_guess_is_decoded_again(colours: Path, tmp_path: Path) -> None:
    index = index_of_run(colours)
    with Decoder(settings(tmp_path), Session()) as decoder:
        found = decoder.decode(index, decoder.read(index, lambda _: 24), size=16, scratch=tmp_path / "s")
    assert (all_pixels(found) == all_pixels(load(index, replace(settings(tmp_path), cache=False), tmp_path))).all()


def test_one_pool_reads_every_file_once_and_serves_every_pass(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = [], _WorkerThread._start_process

    def count(worker: _WorkerThread) -> subprocess.Popen[bytes]:
        started.append(1)
        return start(worker)

    monkeypatch.setattr(_WorkerThread, "_start_process", count)
    index, rows = index_of_run(colours), np.arange(120)
    with Decoder(settings(tmp_path), Session()) as decoder:
        facts = decoder.read(index, lambda sides: int(sides.max()))
        decoded = decoder.decode(index, facts, size=16, scratch=tmp_path / "s")
        for file in colours.rglob("*.png"):
            file.unlink()  # nothing below reads a file again
        small = decoder.thumbnails(index, rows, sha256=facts.sha256, longest=480, training_size=16, decoded=decoded)
    assert len(started) == 2
    assert all(image is not None for image in small)


def test_a_page_shows_the_same_bytes_whether_its_pixels_were_stored_or_are_decoded(tmp_path: Path) -> None:
    for number, size in enumerate([(40, 20), (20, 40), (300, 200), (16, 16), (64, 64)]):
        for label in "ab":
            (tmp_path / "data" / label).mkdir(parents=True, exist_ok=True)
            image = Image.effect_noise(size, 90).convert("RGB")
            exif = Image.Exif()
            exif[0x0112] = 6 if label == "b" else 1  # turned, as phones do
            image.save(tmp_path / "data" / label / f"{number}.jpg", exif=exif)
    index = index_of_run(tmp_path / "data")
    with Decoder(settings(tmp_path), Session()) as decoder:
        facts = decoder.inspect(index)
        decoded = decoder.decode(index, facts, size=64, scratch=tmp_path / "s")
        wanted: dict[str, Any] = {"sha256": facts.sha256, "longest": 100, "training_size": 64}
        stored = decoder.thumbnails(index, np.arange(10), decoded=decoded, **wanted)
        read = decoder.thumbnails(index, np.arange(10), **wanted)
    assert stored == read
    sizes = [Image.open(io.BytesIO(image or b"")).size for image in stored]
    assert sizes == [
        (64, 32),
        (32, 64),
        (100, 67),
        (64, 64),
        (64, 64),
        (32, 64),
        (64, 32),
        (67, 100),
        (64, 64),
        (64, 64),
    ]


def test_flipped_bits_are_found_and_decoded_again(colours: Path, tmp_path: Path) -> None:
    index = index_of_run(colours)
    before = all_pixels(load(index, settings(tmp_path), tmp_path))
    (file,) = (tmp_path / "pixels").rglob("pixels.u8")
    content = bytearray(file.read_bytes())
    content[5000] ^= 4
    file.write_bytes(content)
    facts, warned = inspect_files(index, settings(tmp_path)), Warned()
    mended = decode(index, facts, settings(tmp_path), Session(warned), size=16, scratch=tmp_path / "s")
    assert (all_pixels(mended) == before).all()
    assert [text for text in warned.texts if "120 images are damaged: they are decoded again" in text] == warned.texts


class Warned(NullWatcher):
    """Remembers the warnings."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


def test_a_full_disk_costs_the_cache_and_one_warning(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("noisesieve.core.row_store.RowFile.append", full)
    index, warned = index_of_run(colours), Warned()
    with Decoder(settings(tmp_path), Session(warned)) as decoder:
        found = decoder.decode(index, decoder.read(index, lambda _: 16), size=16, scratch=tmp_path / "s")
        assert len(all_pixels(found)) == 120
    assert len(warned.texts) == 1
    assert "No space left on device: this run goes on without the cache" in warned.texts[0]


def test_entries_in_which_nothing_was_stored_are_swept(tmp_path: Path) -> None:
    used, empty, locked = (tmp_path / f"pixels/16px-v1-4000000-{name}" for name in ("pixels", "lite0", "lite1"))
    for entry in (used, empty, locked):
        entry.mkdir(parents=True)
        (entry / ".lock").touch()
    (used / "pixels.u8").write_bytes(b"x")
    (empty / "last.f16").touch()
    with FileLock(locked / ".lock"):  # a run that has just begun to store
        assert cache_folder(settings(tmp_path), Session()) == tmp_path / "pixels"
    assert used.exists()
    assert locked.exists()
    assert not empty.exists()


def test_a_name_with_a_nul_or_too_long_is_only_unreadable() -> None:
    locate = [ImageLocation("a\0b.png"), ImageLocation("x" * 5000)]
    with WorkerPool(1, max_pixels=2**26, seconds=60) as pool:
        answers = list(pool.run([ImageTask(i, place) for i, place in enumerate(locate)], Pass()))
    assert all("cannot be opened" in answer.status for answer in answers)


def test_closing_a_crew_leaves_no_process(colours: Path) -> None:
    before = threading.active_count()
    index = index_of_run(colours)
    with WorkerPool(2, max_pixels=2**26, seconds=60) as pool:
        list(pool.run([ImageTask(i, index.locate(i)) for i in range(64)], Pass(16)))
        pids = [hand._process.pid for hand in pool._workers if hand._process is not None]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert threading.active_count() == before


def test_a_row_group_goes_to_one_worker_and_a_large_one_to_few(
    tmp_path: Path, colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = next(colours.rglob("*.png")).read_bytes()
    table = pa.table({"image": [blob] * 100, "label": ["a", "b"] * 50})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=30)
    tasks = [ImageTask(i, ImageLocation(str(tmp_path / "t.parquet"), "image", i)) for i in range(100)]
    assert [len(message) for message in task_queue.messages_of(tasks)] == [30, 30, 30, 10]
    monkeypatch.setattr(task_queue, "EMBEDDED_CHUNK", 20)
    assert [len(message) for message in task_queue.messages_of(tasks)] == [20, 10, 20, 10, 20, 10, 10]
    files = [ImageTask(i, ImageLocation("a.png")) for i in range(70)]
    assert [len(message) for message in task_queue.messages_of(files)] == [32, 32, 6]


def test_embedded_images_are_read_once_in_order_and_again_out_of_order(tmp_path: Path) -> None:
    cells = [b"%d" % i for i in range(200)]
    pq.write_table(pa.table({"image": cells}), tmp_path / "t.parquet", row_group_size=80)
    file = str(tmp_path / "t.parquet")
    for order in (range(200), reversed(range(200)), [5, 5, 199, 0, 81, 79, 160]):
        for i in order:
            assert fetch(ImageLocation(file, "image", i)) == cells[i]


def test_images_that_do_not_fit_the_cache_are_read_and_decoded_once_before_the_training(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (colours / "red/0.png").write_bytes(b"no image")
    index, passes = index_of_run(colours), list[Pass]()
    plain = WorkerPool.run

    def run(self: WorkerPool, tasks: Any, work: Pass, *, count: int | None = None) -> Any:
        passes.append(work)
        return plain(self, tasks, work, count=count)

    monkeypatch.setattr(WorkerPool, "run", run)
    small = PixelSettings(cache_dir=tmp_path / "kept", cache_budget=1, workers=2)
    with Decoder(small, Session()) as decoder:
        facts = decoder.read(index, lambda _: 16)
        decoded = decoder.decode(index, facts, size=16, scratch=tmp_path / "scratch")
        assert [work for work in passes if work.send != "file"] == [Pass(16)]  # the sample of headers comes first
        assert len(decoded.rows) == 119
        batch = next(iter(decoded.pixels.batches([np.array([0, 5])])))
        assert batch.shape == (2, 16, 16, 3)
