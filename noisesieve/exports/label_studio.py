"""Label Studio: tasks with the suggestion as a prediction, and the labelling configuration."""

from __future__ import annotations

import json
import shlex
import xml.etree.ElementTree as ET
from urllib.parse import quote

from noisesieve.core.files import Document, Json
from noisesieve.core.text import unescape_name, without_xml_control
from noisesieve.exports.job import ExportJob, ExportResult, require_xml_names


def write(job: ExportJob) -> ExportResult:
    """Write tasks.json and config.xml. The score is the probability that the given label is wrong."""
    require_xml_names(job.classes)
    tasks = [_task(row, i, job) for i, row in enumerate(job.rows)]
    (job.out / "tasks.json").write_text(json.dumps(tasks, ensure_ascii=False, indent=1), encoding="utf-8")
    view = ET.Element("View")
    ET.SubElement(view, "Image", name="image", value="$image")
    choices = ET.SubElement(view, "Choices", name="label", toName="image", choice="single")
    for label in job.classes:
        ET.SubElement(choices, "Choice", value=without_xml_control(label))
    (job.out / "config.xml").write_bytes(ET.tostring(view, encoding="utf-8") + b"\n")
    notes = ["Create a project with config.xml as its labelling interface, then import tasks.json."]
    if job.image_prefix.startswith("/data/local-files"):
        assert job.root is not None
        notes += [
            "Label Studio reads the images from its own disk: start it with",
            "  LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true "
            f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={shlex.quote(str(job.root))}",
            "and add the folder to the project as a source storage, Local files. Versions that need a folder",
            f"below the root: the root is then {shlex.quote(str(job.root.parent))}, and the export needs",
            f"  --image-prefix {shlex.quote(f'/data/local-files/?d={job.root.name}/')}",
        ]
    return ExportResult(len(tasks), notes)


def _task(row: Json, number: int, job: ExportJob) -> Document:
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
                "model_version": f"noisesieve-{job.version}",
                "score": min(1.0, max(0.0, row["corruption_probability"])),
                "result": [choice],
            }
        )
    return {
        "data": {
            "image": job.image_prefix + address,
            "given_label": row["label"],
            "suggested_label": row["suggested_label"],
            "margin": row["margin"],
            "corruption_probability": row["corruption_probability"],
            "noisesieve_id": row["id"],
            "sha256": row["sha256"],
        },
        "predictions": predictions,
    }
