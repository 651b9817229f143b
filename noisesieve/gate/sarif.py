"""SARIF 2.1.0: one result per suspect, at its line, for code scanning."""

from __future__ import annotations

import hashlib
import json
import os
from urllib.parse import quote

from noisesieve.core.files import Document
from noisesieve.gate.policy import Suspect
from noisesieve.gate.result import GateResult, describe_suspect

MOST = 5000  # results that GitHub takes; the worst come first


def render(result: GateResult) -> str:
    """Return one SARIF run with one rule."""
    rule = {
        "id": "NS001",
        "name": "SuspectedMislabel",
        "shortDescription": {"text": "Suspected mislabel"},
        "help": {"text": "Look at the image: correct the label, or waive it with `noisesieve waive`."},
        "defaultConfiguration": {"level": "warning"},
    }
    driver = {"name": "noisesieve", "version": result.version, "rules": [rule]}
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_result(row, result) for row in result.suspects[:MOST]]}],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _result(row: Suspect, result: GateResult) -> Document:
    file, line = result.location(row)
    location = {"artifactLocation": {"uri": quote(os.fsencode(file))}, "region": {"startLine": line}}
    mark = hashlib.sha256(f"{row.sha256}\0{row.label}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return {
        "ruleId": "NS001",
        "level": "warning",
        "message": {"text": describe_suspect(row)},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"noisesieve/v1": mark},
    }
