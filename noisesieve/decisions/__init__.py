"""What people decided, taken back: decision files → one outcome a row, or a refusal that names every problem."""

from __future__ import annotations

from noisesieve.decisions.read import READERS, Decision, read
from noisesieve.decisions.resolve import Outcome, accept_above, resolve

__all__ = ["READERS", "Decision", "Outcome", "accept_above", "read", "resolve"]
