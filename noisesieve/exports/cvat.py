"""CVAT for images 1.1: one tag per image; frames are matched by name."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from noisesieve.core.files import atomic_write
from noisesieve.core.text import without_xml_control
from noisesieve.exports.job import ExportJob, ExportResult, best_label, require_xml_names


def write(job: ExportJob) -> ExportResult:
    """Write one <image> per row with the suggested class as a tag, and one <label> per class in <meta>."""
    require_xml_names(job.classes)
    assert job.sizes is not None
    root = ET.Element("annotations")
    ET.SubElement(root, "version").text = "1.1"
    task = ET.SubElement(ET.SubElement(root, "meta"), "task")
    ET.SubElement(task, "size").text = str(len(job.rows))
    labels = ET.SubElement(task, "labels")
    for name in job.classes:
        label = ET.SubElement(labels, "label")
        ET.SubElement(label, "name").text = without_xml_control(name)
        ET.SubElement(label, "type").text = "tag"
        ET.SubElement(label, "attributes")
    for i, (row, (width, height)) in enumerate(zip(job.rows, job.sizes, strict=True)):
        name = without_xml_control(row["path"])
        image = ET.SubElement(root, "image", id=str(i), name=name, width=str(width), height=str(height))
        ET.SubElement(image, "tag", label=without_xml_control(best_label(row)[0]), source="auto").text = ""
    ET.indent(root)
    with atomic_write(job.out) as file:
        file.write(b'<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="utf-8") + b"\n")
    note = "In a CVAT task of these images: Upload annotations, format CVAT 1.1. The suggestions are tags."
    return ExportResult(len(job.rows), [note])
