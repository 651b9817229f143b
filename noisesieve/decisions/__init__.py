"""Room 6, TAKE BACK: decision files → one outcome per row, or an error that names every problem."""

from __future__ import annotations

from noisesieve.decisions.read import PAGE_DECISIONS, READERS, Decision, read_decisions
from noisesieve.decisions.resolve import Outcome, accept_above, decided_before, resolve

__all__ = [
    "PAGE_DECISIONS",
    "READERS",
    "Decision",
    "Outcome",
    "accept_above",
    "decided_before",
    "read_decisions",
    "resolve",
]
