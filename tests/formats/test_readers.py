"""The annotators' own readers, in an environment of their own: they need other versions than noisesieve does.

`.ci/run` runs this with `pytest --noconftest` where the extra `formats` is installed, without torch.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

LABELS = ["cat", "dog & <b>", "ü \U0001f408", "007", "NA"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Small images under awkward names."""
    pytest.importorskip("PIL", reason="the extra formats is not installed")
    from PIL import Image

    for i in range(5):
        file = tmp_path / f"data/sub dir/ü#{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + i, 6), (40 * i, 90, 10)).save(file)
    return tmp_path / "data"


def job(images: Path, out: Path) -> Any:
    import pyarrow as pa

    from noisesieve.exports.job import ChosenRows, ExportJob

    rows = [
        {
            "row": i,
            "id": f"sub dir/ü#{i}.png",
            "path": f"sub dir/ü#{i}.png",
            "label": LABELS[i],
            "suggested_label": LABELS[(i + 1) % 5] if i < 4 else None,
            "verdict": "corrupted" if i < 4 else "clean",
            "margin": 0.5 - i,
            "corruption_probability": 1.0 - 0.2 * i,
            "predicted_probability": 0.9,
            "label_probability": 0.01,
            "sha256": "0" * 64,
        }
        for i in range(5)
    ]
    files: list[str | None] = [str(images / row["path"]) for row in rows]  # type: ignore[operator]
    sizes = [(8 + i, 6) for i in range(5)]
    return ExportJob(
        chosen=ChosenRows.of_table(pa.Table.from_pylist(rows)),
        classes=LABELS,
        out=out,
        shown=out,
        version="0.1",
        root=images,
        files=files,
        sizes=sizes,
    )


def test_label_studio_accepts_config_tasks_and_predictions(images: Path, tmp_path: Path) -> None:
    interface = pytest.importorskip("label_studio_sdk.label_interface", reason="label-studio-sdk is not installed")
    from noisesieve.exports.formats import EXPORTS

    (tmp_path / "ls").mkdir()
    EXPORTS["label-studio"].write(job(images, tmp_path / "ls"))
    config = interface.LabelInterface((tmp_path / "ls/config.xml").read_text(encoding="utf-8"))
    config.validate()
    tasks = json.loads((tmp_path / "ls/tasks.json").read_text(encoding="utf-8"))
    assert len(tasks) == 5
    for task in tasks:
        assert config.validate_task({"data": task["data"]})
        for prediction in task["predictions"]:
            assert config.validate_prediction(prediction)
    broken = json.loads(json.dumps(tasks[0]["predictions"][0]))
    broken["result"][0]["value"]["choices"] = ["horse"]
    assert not config.validate_prediction(broken)  # the check can fail


def test_datumaro_reads_the_cvat_file(images: Path, tmp_path: Path) -> None:
    datumaro = pytest.importorskip("datumaro", reason="datumaro is not installed")
    from noisesieve.exports.formats import EXPORTS

    place = tmp_path / "cvat"
    shutil.copytree(images, place / "images")  # frames are matched by name
    EXPORTS["cvat"].write(job(images, place / "annotations.xml"))
    found = datumaro.Dataset.import_from(str(place), "cvat")
    names = [category.name for category in found.categories()[datumaro.AnnotationType.label]]
    assert names == LABELS
    tags = {item.id: [names[mark.label] for mark in item.annotations] for item in found}
    assert tags == {f"sub dir/ü#{i}": [LABELS[(i + 1) % 5] if i < 4 else LABELS[4]] for i in range(5)}
