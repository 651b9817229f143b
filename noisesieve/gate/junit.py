"""JUnit XML: one testcase per rule."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from noisesieve.core.text import without_xml_control
from noisesieve.gate.result import GateResult, describe_suspect

SUITE = "noisesieve.check"
LISTED = 50  # suspects in a failure, the worst first


def render(result: GateResult) -> str:
    """Return the rules as a test suite."""
    failed = sum(not rule.passed for rule in result.rules)
    counts = {"tests": str(len(result.rules)), "failures": str(failed)}
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(
        root, "testsuite", {"name": SUITE, **counts, "errors": "0", "skipped": "0", "time": f"{result.seconds:.3f}"}
    )
    for rule in result.rules:
        case = ET.SubElement(suite, "testcase", classname=SUITE, name=rule.name, time="0")
        if not rule.passed:
            text = without_xml_control(f"{rule.measured}; the limit is {rule.limit}")
            failure = ET.SubElement(case, "failure", message=text, type="GateFailure")
            failure.text = without_xml_control("\n".join(describe_suspect(row) for row in result.suspects[:LISTED]))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"
