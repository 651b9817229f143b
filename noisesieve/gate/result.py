"""What the writers of the gate receive: the rules, the counts, the worst rows, and the path of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from noisesieve.core.text import unescape_name
from noisesieve.gate.policy import BatchCounts, RuleResult, Suspect


@dataclass(frozen=True)
class GateResult:
    """A checked batch."""

    name: str  # of the batch, as the user gave it
    version: str
    rules: list[RuleResult]
    batch: BatchCounts
    suspects: Sequence[Suspect]  # worst first
    path: str  # the table or the folder, relative to the working folder of the CI job
    is_table: bool
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(rule.passed for rule in self.rules)

    @property
    def headline(self) -> str:
        """The outcome in one line: what was found or, if the gate failed, the rules that failed."""
        if self.passed:
            return f"passed: {self.batch.corrupted:,} of {self.batch.scored:,} scored labels are suspects"
        failed = [f"{rule.name} is {rule.measured}, limit {rule.limit}" for rule in self.rules if not rule.passed]
        return f"FAILED: {'; '.join(failed)}"

    def location(self, row: Suspect) -> tuple[str, int]:
        """Return the file and line of a row: its line in the table, or the image file."""
        if self.is_table or row.path is None:
            return self.path, row.source_line or 1
        return f"{self.path.rstrip('/')}/{unescape_name(row.path)}", 1


def describe_suspect(row: Suspect) -> str:
    """Return a suspect as one line of text."""
    suggestion = f", looks like {row.suggested_label}" if row.suggested_label is not None else ""
    probability = f"{row.corruption_probability:.0%}"
    return f"{row.path or row.id}: labelled {row.label}{suggestion} (P(wrong) {probability})"
