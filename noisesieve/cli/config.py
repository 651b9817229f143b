"""Options from `[tool.noisesieve]` in pyproject.toml, from noisesieve.toml, and from NOISESIEVE_*.

Flag > environment > file > default. The table of a command, such as `[tool.noisesieve.scan]`, overrides the common one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from noisesieve.core.errors import UsageError

_SCANS_OWN = frozenset(("output", "force"))  # from the environment or the common table they apply to scan only
_NOT_FROM_FILES = frozenset(("help", "version", "debug"))


def use_environment(command: Any) -> None:
    """Read every option also from NOISESIEVE_<NAME>."""
    for sub in getattr(command, "commands", {}).values():
        for option in sub.params:
            if (flag := _flag(option)) is not None and (flag not in _SCANS_OWN or sub.name == "scan"):
                option.envvar = f"NOISESIEVE_{flag.upper()}"


def read_files(command: Any) -> dict[str, dict[str, Any]]:
    """Return defaults for every command, from the files in the working folder."""
    commands: dict[str, Any] = getattr(command, "commands", {})
    defaults: dict[str, dict[str, Any]] = {name: {} for name in commands}
    for file, table in (("pyproject.toml", ("tool", "noisesieve")), ("noisesieve.toml", ())):
        found = _table(Path(file), table)
        own = {key: value for key, value in found.items() if not isinstance(value, dict)}
        for key, value in found.items():
            if isinstance(value, dict) and key not in commands:
                raise UsageError(f"{file}: no command {key!r}.", f"There are: {', '.join(commands)}.")
        known_anywhere = {flag for sub in commands.values() for flag in _options(sub)}
        _refuse_unknown(file, own, known_anywhere)
        for name, sub in commands.items():
            specific = found.get(name, {})
            if not isinstance(specific, dict) and name in known_anywhere:
                specific = {}  # an option with the name of a command, such as `cache`
            if not isinstance(specific, dict):
                raise UsageError(
                    f"{file}: {name!r} is not a table.", f"Write [{'.'.join((*table, name))}] above its options."
                )
            _refuse_unknown(file, specific, _options(sub))
            shared = {key: value for key, value in own.items() if key not in _SCANS_OWN or name == "scan"}
            for key, value in {**shared, **specific}.items():
                if (parameter := _options(sub).get(key.replace("-", "_"))) is not None:
                    defaults[name][parameter] = value
    return defaults


def _table(file: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        found: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if keys:
            return {}  # a broken pyproject.toml may belong to another tool
        raise UsageError(f"{file}: not TOML ({error}).", "Fix it, or remove it.") from error
    for key in keys:
        found = found.get(key, {}) if isinstance(found, dict) else {}
    return found if isinstance(found, dict) else {}


def _flag(option: Any) -> str | None:
    """Return the name of an option in files and environment: its long flag, with underscores."""
    if option.param_type_name != "option":
        return None
    long = next(flag for flag in option.opts if flag.startswith("--"))
    name = str(long[2:]).replace("-", "_")
    return None if name in _NOT_FROM_FILES else name


def _options(command: Any) -> dict[str, str]:
    """Return flag name → parameter name."""
    return {flag: str(option.name) for option in command.params if (flag := _flag(option)) is not None}


def _refuse_unknown(file: str, given: dict[str, Any], known: Iterable[str]) -> None:
    for key in given:
        if key.replace("-", "_") not in known:
            raise UsageError(f"{file}: no option {key!r}.", "See `noisesieve scan --help`.")
