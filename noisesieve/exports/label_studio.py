"""Label Studio: tasks with the suggestion as a prediction, and the labelling configuration."""

from __future__ import annotations

import json
import shlex
import xml.etree.ElementTree as ET
from urllib.parse import quote

from noisesieve.core.files import Document, Json
from noisesieve.core.text import unescape_name, without_xml_control
from noisesieve.exports.job import ExportJob, ExportResult, require_xml_names
from noisesieve.report.schema import UNUSABLE_CHOICE

PASTE = "Create a project; Settings, Labeling Interface, Code: paste config.xml."
IMPORT = "Import tasks.json."


def write(job: ExportJob) -> ExportResult:
    """Write tasks.json and config.xml. The score is the probability that the given label is wrong."""
    require_xml_names(job.classes)
    prefix = job.image_prefix
    address = _local_prefix(job) if prefix is None else prefix
    tasks = [_task(row, i, address, job.version) for i, row in enumerate(job.rows)]
    (job.out / "tasks.json").write_text(json.dumps(tasks, ensure_ascii=False, indent=1), encoding="utf-8")
    view = ET.Element("View")
    ET.SubElement(view, "Header", value="Given label: $given_label", size="4")
    choices = ET.SubElement(view, "Choices", name="label", toName="image", choice="single", showInline="true")
    for label in [*job.classes, UNUSABLE_CHOICE]:
        ET.SubElement(choices, "Choice", value=without_xml_control(label))
    ET.SubElement(view, "Image", name="image", value="$image")  # last: the choices are seen without scrolling
    (job.out / "config.xml").write_bytes(ET.tostring(view, encoding="utf-8") + b"\n")
    notes = _steps(job) if prefix is None else [PASTE, IMPORT]
    return ExportResult(len(tasks), notes)


def _local_prefix(job: ExportJob) -> str:
    """Return the start of an image's address: Label Studio serves its own disk, from one folder above the images."""
    assert job.root is not None
    folder = f"{quote(str(job.root.name), safe='')}/" if job.root.name else ""
    return f"/data/local-files/?d={folder}"


def _steps(job: ExportJob) -> list[str]:
    """Return what to do in Label Studio. Since 1.23 it refuses a storage that is its document root itself."""
    assert job.root is not None
    return [
        "1. Label Studio reads the images from its own disk. Start it with the folder above them as its root:",
        "  LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true "
        f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={shlex.quote(str(job.root.parent))} label-studio start",
        f"2. {PASTE}",
        "3. Settings, Cloud Storage, Add Source Storage, Local Files; save it, and do not sync. Its absolute path:",
        f"  {job.root}",
        f"4. {IMPORT}",
    ]


def _task(row: Json, number: int, prefix: str, version: str) -> Document:
    address = quote(unescape_name(row["path"]).encode("utf-8", "surrogateescape"), safe="/")
    predictions: list[Document] = []
    if row["corruption_probability"] is not None:
        choice = {
            "id": f"r{number + 1}",
            "from_name": "label",
            "to_name": "image",
            "type": "choices",
            "value": {"choices": [without_xml_control(row["suggested_label"] or row["label"])]},
        }
        predictions.append(
            {
                "model_version": f"noisesieve-{version}",
                "score": min(1.0, max(0.0, row["corruption_probability"])),
                "result": [choice],
            }
        )
    return {
        "data": {
            "image": prefix + address,
            "given_label": row["label"],
            "suggested_label": row["suggested_label"],
            "margin": row["margin"],
            "corruption_probability": row["corruption_probability"],
            "noisesieve_id": row["id"],
            "sha256": row["sha256"],
        },
        "predictions": predictions,
    }
