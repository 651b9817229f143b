"""JUnit XML: one testcase a rule, as every CI server shows it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from noisesieve.gate.verdict import Verdict
from noisesieve.names import without_xml_control

SUITE = "noisesieve.check"


def render(verdict: Verdict) -> str:
    """The rules as a test suite."""
    failed = sum(not rule.passed for rule in verdict.rules)
    counts = {"tests": str(len(verdict.rules)), "failures": str(failed)}
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(
        root, "testsuite", {"name": SUITE, **counts, "errors": "0", "skipped": "0", "time": f"{verdict.seconds:.3f}"}
    )
    for rule in verdict.rules:
        case = ET.SubElement(suite, "testcase", classname=SUITE, name=rule.name, time="0")
        if not rule.passed:
            text = without_xml_control(f"{rule.measured}; the limit is {rule.limit}")
            ET.SubElement(case, "failure", message=text, type="GateFailure")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"
