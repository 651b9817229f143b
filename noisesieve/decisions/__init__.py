"""Room 6, TAKE BACK: decision files → one outcome per row, or an error that names every problem."""

from __future__ import annotations

from noisesieve.decisions.read import READERS, Decision, read_decisions
from noisesieve.decisions.resolve import Outcome, accept_above, resolve

__all__ = ["READERS", "Decision", "Outcome", "accept_above", "read_decisions", "resolve"]
