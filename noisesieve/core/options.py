"""Options: what a setting is called on the command line, its bounds and its help. Settings declare them, once.

A field of a settings class declares its option with `option(default, help, …)`. The command line derives its flags from
these fields, and `check` refuses values outside the bounds wherever settings are made.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from noisesieve.core.errors import UsageError

S = TypeVar("S")
REQUIRED: Any = dataclasses.MISSING
DATA, OUTPUT, NETWORK, TRAINING, MACHINE, GATE = "Data", "Output", "Network", "Training", "Machine", "Gate"


@dataclass(frozen=True)
class Option:
    """How one field of a settings class appears on the command line, and which values it takes."""

    help: str
    group: str = ""
    flags: tuple[str, ...] = ()  # default: --the-name
    choices: tuple[str, ...] | Callable[[], Iterable[str]] = ()  # a function where a registry has them
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None  # an open lower bound
    parse: Callable[[str, str], Any] | None = None  # (text, flag) → value
    shown: str = ""  # the default as the command line shows it
    metavar: str = ""
    shared: bool = False  # set for all commands by NOISESIEVE_NAME and the common table of a file

    def flag(self, name: str) -> str:
        """Return the long flag of the field `name`."""
        return self.flags[0].partition("/")[0] if self.flags else "--" + name.replace("_", "-")

    def allowed(self) -> tuple[str, ...]:
        """Return the choices."""
        return tuple(self.choices() if callable(self.choices) else self.choices)

    def check(self, name: str, value: Any, *, whole: bool) -> None:
        """Refuse a value that is not one of the choices or outside the bounds."""
        flag = self.flag(name)
        if self.choices:
            allowed = self.allowed()
            values = value if isinstance(value, tuple) else (value,)
            for unknown in (item for item in values if item not in allowed):
                raise UsageError(f"{flag} {unknown}: unknown.", f"Choose {', '.join(allowed)}.")
        if self.minimum is None and self.maximum is None and self.above is None:
            return
        kind = int if whole else int | float
        inside = isinstance(value, kind) and not isinstance(value, bool)
        inside = inside and (self.minimum is None or value >= self.minimum)
        inside = inside and (self.above is None or value > self.above)
        inside = inside and (self.maximum is None or value <= self.maximum) and value == value
        if not inside:
            raise UsageError(f"{flag} {value}: must be a {'whole ' * whole}number {self._bounds()}.")

    def _bounds(self) -> str:
        low = (
            f"above {self.above:g}"
            if self.above is not None
            else ""
            if self.minimum is None
            else f"from {self.minimum:,g}"
        )
        if self.maximum is None:
            return low.replace("from", "of at least")
        return f"{low} {'to' if self.above is None else 'and at most'} {self.maximum:,g}".strip()


def option(default: Any, text: str, group: str = "", **details: Any) -> Any:
    """Return a dataclass field with an option."""
    metadata = {"option": Option(text, group, **details)}
    return field(metadata=metadata) if default is REQUIRED else field(default=default, metadata=metadata)


def replace_output_option() -> Any:
    """Return the field of --force."""
    return option(False, "Replace existing output.", OUTPUT)


class Settings:
    """The base of settings classes: values outside the bounds of an option are refused."""

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if (declared := item.metadata.get("option")) is not None and value is not None:
                declared.check(item.name, value, whole=str(item.type).startswith("int"))


def option_fields(kind: type) -> dict[str, tuple[Any, Option]]:
    """Return name → (type, option) of every option of a settings class, its nested settings included, in order."""
    options: dict[str, tuple[Any, Option]] = {}
    hints = typing.get_type_hints(kind)
    for item in fields(kind):
        if dataclasses.is_dataclass(hints[item.name]):
            options |= option_fields(hints[item.name])
        elif "option" in item.metadata:
            options[item.name] = hints[item.name], item.metadata["option"]
    return options


def default_of(kind: type, name: str) -> Any:
    """Return the default of an option, also of nested settings; REQUIRED if it has none."""
    hints = typing.get_type_hints(kind)
    for item in fields(kind):
        if dataclasses.is_dataclass(hints[item.name]):
            if name in option_fields(hints[item.name]):
                return default_of(hints[item.name], name)
        elif item.name == name:
            return item.default
    raise KeyError(name)


def build_settings(kind: type[S], values: Mapping[str, object]) -> S:
    """Return settings from flat options, as in the command line and the Python API. Unknown names are refused."""
    left = dict(values)
    made = _build(kind, left)
    if left:
        raise UsageError(f"{next(iter(left))!r} is not an option.", f"Choose {', '.join(option_fields(kind))}.")
    return made


def _build(kind: type[S], left: dict[str, object]) -> S:
    """Return settings from the values that belong to them; takes these out of `left`."""
    hints = typing.get_type_hints(kind)
    own: dict[str, object] = {}
    for item in fields(kind):  # type: ignore[arg-type]
        hint, declared = hints[item.name], item.metadata.get("option")
        if dataclasses.is_dataclass(hint) and not dataclasses.is_dataclass(left.get(item.name)):
            own[item.name] = _build(hint, left)  # type: ignore[arg-type]
        elif item.name in left:
            own[item.name] = _converted(left.pop(item.name), hint, declared, item.name)
    return kind(**own)


def _converted(value: object, hint: Any, declared: Option | None, name: str) -> object:
    """Return a value in the type of its field: text is parsed, paths are made paths, lists tuples."""
    if declared is not None and declared.parse is parse_paths:  # several files: separate values, or commas
        several = value if isinstance(value, list | tuple) else [value]
        return tuple(path for item in several for path in parse_paths(str(item), declared.flag(name)))
    if isinstance(value, str) and declared is not None and declared.parse is not None:
        return declared.parse(value, declared.flag(name))
    kinds = hint.__args__ if isinstance(hint, types.UnionType) else (hint,)
    if Path in kinds and isinstance(value, str | Path):
        if not str(value):
            raise UsageError(f"{declared.flag(name) if declared else name} is empty.", "Give a path, or leave it out.")
        return Path(value)
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Limit:
    """A share (`5%`, `0.05`) or a count (`12`)."""

    value: Fraction  # exact, so that a batch exactly at its limit passes
    is_share: bool
    text: str


def parse_limit(text: str, flag: str) -> Limit | None:
    """Parse a limit: a share (5%, 0.05), a count (12), or `none`."""
    if text == "none":
        return None
    number, percent = (text[:-1], True) if text.endswith("%") else (text, False)
    try:
        value = Fraction(number)
    except (ValueError, ZeroDivisionError):
        value = Fraction(-1)
    is_share = percent or not number.isdecimal()
    value = value / 100 if percent else value
    if not (0 <= value <= 1 if is_share else value >= 0):
        raise UsageError(f"{flag} {text}: neither a share (5%, 0.05) nor a count (12).")
    return Limit(value, is_share, text)


def parse_seconds(text: str, flag: str) -> float:
    """Parse `90`, `90s`, `15m` or `2h` to seconds."""
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        value = float(number) * unit
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{flag} {text}: not a time.", "Write 90s, 15m or 2h.")
    return value


def parse_age(text: str, flag: str) -> float:
    """Parse `30d`, `12h` or `90m` to seconds."""
    units = {"m": 60, "h": 3600, "d": 86_400}
    if text[-1:] not in units or not text[:-1].isdecimal():
        raise UsageError(f"{flag} {text}: not an age.", "Write 30d, 12h or 90m.")
    return float(text[:-1]) * units[text[-1]]


def parse_bytes(text: str, flag: str) -> int:
    """Parse `500MB`, `20GB`, `1TB` or a plain number to bytes."""
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    upper = text.strip().upper()
    number, unit = (upper[:-2], units[upper[-2:]]) if upper[-2:] in units else (upper, 1)
    try:
        return int(float(number) * unit)
    except (ValueError, OverflowError):
        raise UsageError(f"{flag} {text}: not a size.", "Write 500MB or 20GB.") from None


def parse_count(text: str, flag: str) -> int | None:
    """Parse a whole number, or `none`."""
    if text == "none":
        return None
    if not text.isdecimal():
        raise UsageError(f"{flag} {text}: not a count.", "Write 0, 3 or none.")
    return int(text)


def parse_share(text: str, flag: str) -> float:
    """Parse `0.05` or `5%` to a share between 0 and 1."""
    number, scale = (text[:-1], 100.0) if text.endswith("%") else (text, 1.0)
    try:
        value = float(number) / scale
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise UsageError(f"{flag} {text}: not a share between 0 and 1.", "Write 0.05 or 5%.")
    return value


def parse_names(text: str, flag: str) -> tuple[str, ...]:
    """Parse a comma-separated list of names."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError(f"{flag} is empty.", "Give some names, or leave it out for all.")
    return names


def parse_paths(text: str, flag: str) -> tuple[Path, ...]:
    """Parse a comma-separated list of files; a name with a comma is found if it is the only one."""
    if Path(text).exists():
        return (Path(text),)
    return tuple(Path(name) for name in parse_names(text, flag))
