"""What the writers are given: the rules, the batch, its worst rows, and where the batch lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from noisesieve.gate.policy import Batch, Rule
from noisesieve.names import unescape_name


@dataclass(frozen=True)
class Verdict:
    """A checked batch."""

    name: str  # of the batch, for people
    version: str
    rules: list[Rule]
    batch: Batch
    suspects: Sequence[dict[str, Any]]  # worst first
    place: str  # the table, or the folder, as a path from where the gate runs
    is_table: bool
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(rule.passed for rule in self.rules)

    def spot(self, row: dict[str, Any]) -> tuple[str, int]:
        """File and line to point at: the table's line, else the image itself."""
        if self.is_table or row["path"] is None:
            return self.place, row["source_line"] or 1
        return f"{self.place.rstrip('/')}/{unescape_name(row['path'])}", 1


def told(row: dict[str, Any]) -> str:
    """A suspect in one line."""
    suggestion = f", looks like {row['suggested_label']}" if row["suggested_label"] is not None else ""
    chance = f"{row['corruption_probability']:.0%}"
    return f"{row['path'] or row['id']}: labelled {row['label']}{suggestion} (wrong with {chance})"
