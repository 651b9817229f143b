"""Markdown: the gate on one page, for a pull request or a step summary."""

from __future__ import annotations

import html
import re

from noisesieve.core.text import printable
from noisesieve.gate.result import GateResult

SHOWN = 20
_LINK = re.compile(r"@|:(?=//)|(?<=www)\.", re.IGNORECASE)  # @name, https://…, www.…
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~-])")


def render(result: GateResult) -> str:
    """Return the rules, the notes and the worst suspects."""
    batch = result.batch
    suspects = "1 suspect" if batch.corrupted == 1 else f"{batch.corrupted:,} suspects"
    lines = [
        f"### noisesieve check: {escape(result.headline)}",
        "",
        f"{escape(result.name)}: {batch.scored:,} of {batch.examples:,} images scored, {suspects}"
        + (f", {batch.waived:,} waived" if batch.waived else ""),
        "",
        "| rule | limit | measured | |",
        "|---|---|---|---|",
        *(
            f"| {rule.name} | {escape(rule.limit)} | {escape(rule.measured)} | {_word(rule.passed)} |"
            for rule in result.rules
        ),
        "",
        *(f"- {escape(note)}" for note in result.notes),
    ]
    if result.suspects:
        lines += ["", "| suspect | given | looks like | P(wrong) |", "|---|---|---|---:|"]
        for row in result.suspects[:SHOWN]:
            cells = (row.path or row.id, row.label, row.suggested_label or "?")
            lines.append(f"| {' | '.join(map(escape, cells))} | {row.corruption_probability:.0%} |")
        if batch.corrupted > SHOWN:
            lines += ["", f"and {batch.corrupted - SHOWN:,} more"]
    return "\n".join(lines) + "\n"


def _word(passed: bool) -> str:
    return "pass" if passed else "**fail**"


def escape(text: str) -> str:
    """Return text that Markdown shows literally: nobody is notified, nothing becomes a link."""
    plain = html.escape(_SPECIAL.sub(r"\\\1", printable(text)), quote=False)
    return _LINK.sub(lambda match: f"&#{ord(match[0])};", plain)
