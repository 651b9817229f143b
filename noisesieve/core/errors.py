"""The errors that users see: a problem, a next step, and one exit code per kind of error."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 10  # items that an error lists


class NoisesieveError(Exception):
    """An error the user can act on.

    `problem` says what is wrong and where, `hint` the next step, `items` lists single cases; `exit_code` is returned by
    the process.
    """

    exit_code = 70  # an error of noisesieve itself, not of the input

    def __init__(self, problem: str, hint: str = "", *, items: Sequence[str] = ()) -> None:
        super().__init__(f"{problem} {hint}".strip())
        self.problem = problem
        self.hint = hint
        more = [f"… and {len(items) - SHOWN:,} more"] if len(items) > SHOWN else []
        self.items = [*items[:SHOWN], *more]


class UsageError(NoisesieveError):
    """The options contradict each other, or this machine cannot do what they ask for."""

    exit_code = 2


class InputError(NoisesieveError):
    """The dataset or another input file cannot be read."""

    exit_code = 3


class OutputError(NoisesieveError):
    """The result cannot be written to its target."""

    exit_code = 4


class StateError(NoisesieveError):
    """Files on disk do not belong to this command: other settings, other data, or a changed file."""

    exit_code = 5


class TrainingError(NoisesieveError):
    """Training failed: a loss that is not finite, or every row dropped."""

    exit_code = 6


class Stopped(NoisesieveError):
    """The command was asked to stop (by a signal or `--max-time`)."""

    def __init__(self, problem: str, hint: str = "", *, exit_code: int, by_time: bool = False) -> None:
        super().__init__(problem, hint)
        self.exit_code = exit_code
        self.by_time = by_time
