"""Small files that unpack to gigabytes, claims without bytes, and work that grows with the square of the input."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from noisesieve.core.columns import Texts
from noisesieve.core.errors import InputError, StateError
from noisesieve.core.progress import Session
from noisesieve.pixels.decoder import Decoder
from noisesieve.pixels.pixel_settings import PixelSettings
from noisesieve.sources.containers import read_index, stratified
from noisesieve.sources.source_settings import SourceSettings
from noisesieve.sources.vectors import read_embeddings
from tests.conftest import Run
from tests.hostile.attack import few_colours
from tests.runs import make_run

MIB = 2**20


def repeated(value: str | bytes, count: int) -> pa.Array:
    """A column that stores one long cell once, and unpacks to as many copies as there are rows."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value]))


def test_a_table_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    labels = pa.array([str(i % 2) for i in range(5500)])
    for column in (repeated("x" * MIB, 5500), repeated("x" * 20 * MIB, 3).take(pa.array([0] * 5500))):
        pq.write_table(pa.table({"path": labels, "label": labels, "note": column}), file)
        assert file.stat().st_size < 2 * MIB
        with pytest.raises(InputError, match=r"unpacks to far more|a cell of more than"):
            read_index(SourceSettings(file))


def test_rows_without_bytes_are_counted_before_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"label": repeated("a", 40_000_000), "path": repeated("b", 40_000_000)}), file)
    with pytest.raises(InputError, match="would take"):
        read_index(SourceSettings(file))


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_an_image_column_is_kept_packed(tmp_path: Path) -> None:
    blob = io.BytesIO()
    Image.effect_noise((600, 600), 90).save(blob, "PNG")
    file = tmp_path / "t.parquet"
    cells = {"image": repeated(blob.getvalue(), 12_000), "label": pa.array([str(i % 2) for i in range(12_000)])}
    pq.write_table(pa.table(cells), file)
    assert 12_000 * len(blob.getvalue()) > 3 * 2**30
    code = (
        "import sys; from noisesieve.core.records import ImageLocation; from noisesieve.pixels.fetch import fetch\n"
        "for row in (0, 11_999): assert len(fetch(ImageLocation(sys.argv[1], 'image', row))) > 1000\n"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    )
    found = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 500 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("kind", ["I;16", "F"])
def test_deep_images_are_scaled_in_strips(tmp_path: Path, kind: str) -> None:
    side, file = 8000, tmp_path / ("deep.png" if kind == "I;16" else "deep.tif")
    if kind == "I;16":
        Image.fromarray(np.zeros((side, side), np.uint16)).save(file)
    else:
        Image.fromarray(np.zeros((side, side), np.float32)).save(file, compression="tiff_lzw")
    code = (
        "import sys; from noisesieve.pixels.image import decode_image\n"
        "decode_image(open(sys.argv[1], 'rb').read(), size=64, max_pixels=2**26)\n"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    )
    found = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 900 * 1024


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_strips_give_the_same_pixels_as_the_whole(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from noisesieve.pixels import image as module

    values = np.random.default_rng(0).normal(300, 200, (41, 37))
    dtype = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
    deep = Image.fromarray(values.clip(0, 900).astype(dtype))
    whole = np.asarray(module._from_deep(deep))
    monkeypatch.setattr(module, "STRIP", 100)
    assert np.array_equal(np.asarray(module._from_deep(deep)), whole)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_a_worker_that_needs_too_much_memory_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = few_colours(tmp_path / "data", each=2)
    side = 14_000
    Image.new("1", (side, side)).save(data / "red/bomb.png")  # 20 KB; RGB and its copies need gigabytes
    index = read_index(SourceSettings(data))
    code = (
        "import sys, noisesieve.pixels.worker as worker\n"
        "worker.SPARE_BYTES, worker.BYTES_PER_PIXEL = 2**27, 1\n"
        "worker.main()"
    )
    real = subprocess.Popen

    def smaller(command: list[str], **options: object) -> object:
        return real([command[0], "-P", "-c", code], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", smaller)
    settings = PixelSettings(cache=False, workers=1, max_pixels=side * side)
    with Decoder(settings, Session()) as decoder:
        facts = decoder.inspect(index)
        decoded = decoder.decode(index, facts, size=16, scratch=tmp_path / "scratch")
    assert len(decoded.rows) == 6
    assert "memory" in decoded.file_facts.status[index.ids.index("red/bomb.png")]


def test_importing_us_leaves_pillow_as_it_was() -> None:
    code = (
        "from PIL import Image; before = Image.MAX_IMAGE_PIXELS; import csv; limit = csv.field_size_limit()\n"
        "import noisesieve.pixels.image, noisesieve.commands.scan\n"
        "assert before is not None and Image.MAX_IMAGE_PIXELS == before and csv.field_size_limit() == limit"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reading_a_table_leaves_the_limit_of_csv_as_it_was(tmp_path: Path) -> None:
    import csv

    before = csv.field_size_limit()
    (tmp_path / "t.csv").write_text(f"path,label,note\na.png,a,{'x' * 200_000}\nb.png,b,\n")
    assert len(read_index(SourceSettings(tmp_path / "t.csv"))) == 2
    assert csv.field_size_limit() == before


# Claims


def npy_header(shape: tuple[int, ...]) -> bytes:
    sink = io.BytesIO()
    np.lib.format.write_array_header_1_0(sink, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return sink.getvalue()


def test_arrays_that_claim_more_than_they_have_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label\na.png,a\nb.png,b\n")
    index = read_index(SourceSettings(table))
    (tmp_path / "v.npy").write_bytes(npy_header((2, 2**39)) + b"\0" * 100)
    with zipfile.ZipFile(tmp_path / "claim.npz", "w") as parts:
        parts.writestr("a.npy", npy_header((2, 2**39)))
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("a.npy", npy_header((2, 2**25)) + bytes(2**29))
    for name in ("v.npy", "claim.npz", "bomb.npz"):
        with pytest.raises(InputError, match=r"claims an array|unpacks to"):
            read_embeddings(tmp_path / name, index, index.ids)


@pytest.mark.parametrize(
    "change",
    [
        {"image_size": 60_000},
        {"image_size": "16"},
        {"backbone": "timm/vit_giant_patch14_dinov2"},
        {"backbone": "nothing"},
        {"classes": []},
        {"classes": ["a"] * 3},
        {"prior": None},
        {"mean": [1e999, 0, 0]},
        {"std": [0, 0, 0]},
        {"sieve_eps": 0},
        {"calibration": {"log_probability": [0.0], "chance": []}},
        {"schema_version": None},
        {"frozen": 7},
    ],
    ids=str,
)
def test_a_model_card_is_bounded_before_anything_is_built(tmp_path: Path, change: dict[str, object]) -> None:
    import torch
    from safetensors.torch import save_file

    from noisesieve.core.files import sha256_of
    from noisesieve.learn.networks.backbones import build
    from noisesieve.report.saved_model import load_model

    network = build("resnet8", classes=3, image_size=16, seed=0)
    save_file(
        {name: value.contiguous() for name, value in network.state_dict().items()}, tmp_path / "model.safetensors"
    )
    card = {
        "schema_version": 1,
        "backbone": "resnet8",
        "depths": ["last"],
        "image_size": 16,
        "classes": ["a", "b", "c"],
        "frozen": None,
        "mean": [0.0, 0.0, 0.0],
        "std": [1.0, 1.0, 1.0],
        "flip": False,
        "prior": [0.3, 0.3, 0.4],
        "beta": 2.0,
        "sieve_eps": 0.1,
        "sha256": sha256_of(tmp_path / "model.safetensors"),
    }
    (tmp_path / "model.json").write_text(json.dumps(card))
    assert load_model(tmp_path, torch.device("cpu")).classes == ["a", "b", "c"]
    (tmp_path / "model.json").write_text(json.dumps({**card, **change}))
    with pytest.raises(StateError, match=r"model\.json"):
        load_model(tmp_path, torch.device("cpu"))


def test_safetensors_with_a_false_header_is_refused(tmp_path: Path) -> None:
    from noisesieve.core.files import sha256_of
    from noisesieve.report.saved_model import load_vector_model

    header = b'{"fc.weight":{"dtype":"F32","shape":[3,1000000000000],"data_offsets":[0,12000000000000]}}'
    for blob in (struct.pack("<Q", 2**60) + b"{}", struct.pack("<Q", len(header)) + header, b"", b"\xff" * 100):
        (tmp_path / "model.safetensors").write_bytes(blob)
        card = {
            "schema_version": 1,
            "backbone": "embeddings",
            "image_size": 0,
            "classes": ["a", "b", "c"],
            "mean": [],
            "std": [],
            "flip": False,
            "prior": [0.2, 0.3, 0.5],
            "beta": 2.0,
            "sieve_eps": 0.1,
            "sha256": sha256_of(tmp_path / "model.safetensors"),
        }
        (tmp_path / "model.json").write_text(json.dumps(card))
        with pytest.raises(StateError, match=r"model\.json"):
            load_vector_model(tmp_path)


# Squares


def test_a_new_key_in_every_line_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    lines = (json.dumps({"path": f"{i}.png", "label": str(i % 2), f"key{i}": 1}) for i in range(20_000))
    file.write_text("\n".join(lines))
    with pytest.raises(InputError, match="different keys"):
        read_index(SourceSettings(file))


def test_metadata_of_hugging_face_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from noisesieve.sources import parquet

    features = {f"c{i}": {"names": ["a", "b"], "_type": "ClassLabel"} for i in range(200)}
    columns = {**{name: [0, 1] for name in features}, "path": ["a", "b"], "label": ["x", "y"]}
    described = json.dumps({"info": {"features": features}})
    table = pa.table(columns).replace_schema_metadata({"huggingface": described})
    pq.write_table(table, tmp_path / "t.parquet")
    calls: list[int] = []
    real = json.loads
    monkeypatch.setattr(parquet.json, "loads", lambda text: calls.append(1) or real(text))
    index = read_index(SourceSettings(tmp_path / "t.parquet"))
    assert index.carried is not None
    assert index.carried["c7"].to_pylist() == ["a", "b"]
    assert len(calls) == 1


def test_a_hundred_thousand_classes_are_sampled_as_before() -> None:
    labels = Texts([str(i % 100_000) for i in range(250_000)])
    assert len(stratified(labels, 120_000, seed=0)) == 120_000
    for limit in (7, 20, 33, 90):
        small = ["a"] * 50 + ["b"] * 30 + ["c"] * 5 + [f"r{i}" for i in range(15)]
        chosen = stratified(Texts(small), limit, seed=3)
        assert len(chosen) == limit
        assert len({small[i] for i in chosen}) == min(limit, 18) or limit < 18


# Wrong types


WRONG = (None, [], 7, "x", {"identity": 1}, {"schema_version": "1"})


@pytest.mark.parametrize("value", WRONG, ids=str)
@pytest.mark.parametrize("name", ["run.json", "summary.json"])
def test_a_document_of_another_kind_is_named(inside: Run, tmp_path: Path, name: str, value: object) -> None:
    make_run(few_colours(tmp_path / "data"), tmp_path / "run", {"red/0.png": "green"})
    (tmp_path / "run" / name).write_text(json.dumps(value))
    ended = inside("review", tmp_path / "run")
    assert ended.returncode == 5, ended.stderr
    assert name in ended.stderr


CHANGES = (
    ("identity", {"source": 1}),
    ("identity", {"source": {"path_column": 7}, "training": {"epochs": "x"}, "max_pixels": 1, "probabilities": "auto"}),
    ("identity", {"source": {}, "training": {"unknown": 1}, "max_pixels": 1, "probabilities": "auto"}),
    ("identity", {"source": {}, "training": {}, "max_pixels": "many", "probabilities": "auto"}),
    ("identity", {}),
    ("location", {"path": 7}),
    ("location", []),
    ("files", {"report.parquet": 7}),
    ("complete", "yes"),
    ("version", None),
)


@pytest.mark.parametrize(("key", "value"), CHANGES, ids=str)
def test_a_forged_run_is_refused_by_its_name(inside: Run, tmp_path: Path, key: str, value: object) -> None:
    from tests.hostile.attack import forge_run

    make_run(few_colours(tmp_path / "data"), tmp_path / "run", {"red/0.png": "green"})
    forge_run(tmp_path / "run", lambda document: document.update({key: value}))
    moved = ("--data", tmp_path / "data")
    apply = ("apply", "--accept-above", "0", "-o", tmp_path / "n.csv")
    for words in (("review",), ("export", "--to", "cvat"), apply):
        ended = inside(words[0], tmp_path / "run", *words[1:], *moved)
        assert ended.returncode == 5, ended.stderr
        assert "run.json" in ended.stderr


@pytest.mark.parametrize(
    "facts",
    [b"null", b"[]", b"{}", b'{"schema_version": "2"}', b'{"schema_version": 1, "classes": 7}', b"[" * 10**5, b"\xff"],
    ids=lambda facts: repr(facts[:40]),
)
def test_strange_metadata_of_a_report_is_refused(inside: Run, tmp_path: Path, facts: bytes) -> None:
    from noisesieve.core.files import sha256_of
    from tests.hostile.attack import forge_run

    make_run(few_colours(tmp_path / "data"), tmp_path / "run", {"red/0.png": "green"})
    file = tmp_path / "run/report.parquet"
    pq.write_table(pq.read_table(file).replace_schema_metadata({b"noisesieve": facts}), file)
    forge_run(tmp_path / "run", lambda document: document["files"].update({"report.parquet": sha256_of(file)}))
    ended = inside("review", tmp_path / "run")
    assert ended.returncode == 5, ended.stderr
    assert "report.parquet" in ended.stderr


@pytest.mark.parametrize("column", ["verdict", "label", "rank", "row", "sha256"])
def test_columns_of_another_type_are_refused(inside: Run, tmp_path: Path, column: str) -> None:
    from noisesieve.core.files import sha256_of
    from tests.hostile.attack import forge_run

    make_run(few_colours(tmp_path / "data"), tmp_path / "run", {"red/0.png": "green"})
    file = tmp_path / "run/report.parquet"
    table = pq.read_table(file)
    odd = table.set_column(table.column_names.index(column), column, pa.array([[1.5]] * len(table)))
    pq.write_table(odd.replace_schema_metadata(table.schema.metadata), file)
    forge_run(tmp_path / "run", lambda document: document["files"].update({"report.parquet": sha256_of(file)}))
    ended = inside("review", tmp_path / "run")
    assert ended.returncode == 5, ended.stderr
    assert "report.parquet" in ended.stderr
