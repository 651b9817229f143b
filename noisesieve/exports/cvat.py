"""CVAT for images 1.1: one tag an image, frames matched by name."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from noisesieve.exports.parcel import Parcel, Written, best_label, require_xml_names
from noisesieve.files import replacing
from noisesieve.names import without_xml_control


def write(parcel: Parcel) -> Written:
    """One <image> a row with the suggested class as a tag; one <label> a class in <meta>."""
    require_xml_names(parcel.classes)
    assert parcel.sizes is not None
    root = ET.Element("annotations")
    ET.SubElement(root, "version").text = "1.1"
    task = ET.SubElement(ET.SubElement(root, "meta"), "task")
    ET.SubElement(task, "size").text = str(len(parcel.rows))
    labels = ET.SubElement(task, "labels")
    for name in parcel.classes:
        label = ET.SubElement(labels, "label")
        ET.SubElement(label, "name").text = without_xml_control(name)
        ET.SubElement(label, "type").text = "tag"
        ET.SubElement(label, "attributes")
    for i, (row, (width, height)) in enumerate(zip(parcel.rows, parcel.sizes, strict=True)):
        name = without_xml_control(row["path"])
        image = ET.SubElement(root, "image", id=str(i), name=name, width=str(width), height=str(height))
        ET.SubElement(image, "tag", label=without_xml_control(best_label(row)[0]), source="auto").text = ""
    ET.indent(root)
    with replacing(parcel.out) as file:
        file.write(b'<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="utf-8") + b"\n")
    note = "In a CVAT task of these images: Upload annotations, format CVAT 1.1. The suggestions are tags."
    return Written(len(parcel.rows), [note])
