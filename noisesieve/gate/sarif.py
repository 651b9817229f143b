"""SARIF 2.1.0: every suspect as a result at its line, for code scanning."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any
from urllib.parse import quote

from noisesieve.gate.verdict import Verdict, told

MOST = 5000  # results that GitHub takes; the worst come first


def render(verdict: Verdict) -> str:
    """One run with one rule."""
    rule = {
        "id": "NS001",
        "name": "SuspectedMislabel",
        "shortDescription": {"text": "Suspected mislabel"},
        "help": {"text": "Look at the picture: correct the label, or waive it with `noisesieve waive`."},
        "defaultConfiguration": {"level": "warning"},
    }
    driver = {"name": "noisesieve", "version": verdict.version, "rules": [rule]}
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_result(row, verdict) for row in verdict.suspects[:MOST]]}],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _result(row: dict[str, Any], verdict: Verdict) -> dict[str, Any]:
    file, line = verdict.spot(row)
    place = {"artifactLocation": {"uri": quote(os.fsencode(file))}, "region": {"startLine": line}}
    mark = hashlib.sha256(f"{row['sha256']}\0{row['label']}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return {
        "ruleId": "NS001",
        "level": "warning",
        "message": {"text": told(row)},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"noisesieve/v1": mark},
    }
