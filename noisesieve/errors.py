"""What can go wrong, as a user reads it: the problem, then the next step; each kind has its exit code."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 10  # items that an error lists


class NoisesieveError(Exception):
    """A problem the user can act on. `hint` is the next step, `items` are its cases; `exit_code` is the process's."""

    exit_code = 70  # a fault of ours, not of the input

    def __init__(self, problem: str, hint: str = "", *, items: Sequence[str] = ()) -> None:
        super().__init__(f"{problem} {hint}".strip())
        self.problem = problem
        self.hint = hint
        more = [f"… and {len(items) - SHOWN:,} more"] if len(items) > SHOWN else []
        self.items = [*items[:SHOWN], *more]


class UsageError(NoisesieveError):
    """The command line or the settings contradict themselves or this machine."""

    exit_code = 2


class InputError(NoisesieveError):
    """The dataset cannot be read as it is."""

    exit_code = 3


class OutputError(NoisesieveError):
    """The result cannot be written where it should go."""

    exit_code = 4


class StateError(NoisesieveError):
    """What lies on disk does not belong to this command: other settings, other data, a tampered file."""

    exit_code = 5


class TrainingError(NoisesieveError):
    """Training cannot give a trustworthy verdict."""

    exit_code = 6


class Stopped(NoisesieveError):
    """Training was asked to stop (a signal, `--max-time`) and left a checkpoint."""

    def __init__(self, problem: str, hint: str = "", *, exit_code: int) -> None:
        super().__init__(problem, hint)
        self.exit_code = exit_code
