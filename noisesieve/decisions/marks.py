"""What a person decided about a row, and the mark by which a corrected table remembers it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class DecisionMark:
    """A decision as `apply` writes it into a table: what, by whom, when, and for which content with which label."""

    decision: str  # keep, accept or relabel
    by: str
    at: str
    key: str  # of `decision_key`

    def to_text(self) -> str:
        """Return the cell: `keep 2026-11-18T07:00:00Z 1743c222d8c34f34 ann`."""
        return f"{self.decision} {self.at.replace(' ', 'T') or '-'} {self.key} {' '.join(self.by.split())}".rstrip()

    @classmethod
    def from_text(cls, text: str) -> DecisionMark | None:
        """Undo `to_text`; None if the cell is something else."""
        decision, *rest = text.split(" ", 3)
        if decision not in ("keep", "accept", "relabel") or len(rest) < 2:
            return None
        return cls(decision, rest[2] if len(rest) > 2 else "", "" if rest[0] == "-" else rest[0], rest[1])


def decision_key(sha256: str | None, label: str) -> str:
    """Return the key of an image's content with a label: a decision holds as long as neither changes."""
    return hashlib.sha256(f"{sha256}\n{label}".encode("utf-8", "backslashreplace")).hexdigest()[:16]
