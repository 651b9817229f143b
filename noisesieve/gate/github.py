"""GitHub Actions: annotations at the lines of the table, and the step summary."""

from __future__ import annotations

from noisesieve.core.text import printable
from noisesieve.gate.result import GateResult, describe_suspect

MOST_ANNOTATIONS = 10  # GitHub shows no more per step
MOST_SUMMARY = 2**20 - 1024  # bytes


def commands(result: GateResult) -> list[str]:
    """Return workflow commands: the failed rules as errors, then the worst suspects as warnings."""
    lines = [
        f"::error title={_property(f'noisesieve {rule.name}')}::{_message(f'{rule.measured}; limit {rule.limit}')}"
        for rule in result.rules
        if not rule.passed
    ]
    for row in result.suspects[: MOST_ANNOTATIONS - len(lines)]:
        file, line = result.location(row)
        where = f"file={_property(file)},line={line},title={_property('Suspected mislabel')}"
        lines.append(f"::warning {where}::{_message(describe_suspect(row))}")
    return lines


def summary(markdown: str) -> str:
    """Return Markdown, cut to the size limit of the step summary."""
    blob = markdown.encode()
    return markdown if len(blob) <= MOST_SUMMARY else blob[:MOST_SUMMARY].decode("utf-8", "ignore") + "\n…\n"


def _message(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
