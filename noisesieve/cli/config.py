"""Options from `[tool.noisesieve]` in pyproject.toml, from noisesieve.toml, and from NOISESIEVE_*.

Flag > environment > file > default. `NOISESIEVE_CHECK_DEVICE` and `[tool.noisesieve.check]` set an option of one
command. `NOISESIEVE_DEVICE` and the common table `[tool.noisesieve]` set an option of `scan`, and of all others for
options that mean the same everywhere (device, cache, columns of a table, waivers). An option that only one command has
needs no name of the command. So an option meant for scan never changes another command. Files are those of the working
folder, unless it is the dataset's, and the one that --config names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from noisesieve.cli.terminal import say
from noisesieve.core.errors import UsageError
from noisesieve.core.files import digest
from noisesieve.core.text import line_that_is_not_utf8
from noisesieve.core.untrusted import is_sealed, read_json, read_regular

LONGEST = 2**20  # bytes of a file of options
DATA_PARAMETERS = ("data", "batch", "run", "source", "before", "after", "root", "model", "test", "test_root")
RUNS = ("run", "source", "before", "after")  # of these, those that are run folders
_NOT_FROM_FILES = frozenset(("help", "version", "debug", "config"))


def use_environment(command: Any) -> None:
    """Read every option also from NOISESIEVE_<COMMAND>_<NAME>, and from NOISESIEVE_<NAME> where that is unambiguous."""
    commands: dict[str, Any] = getattr(command, "commands", {})
    for name, sub in commands.items():
        common = _common_options(name, commands)
        for option in sub.params:
            if (flag := _flag(option)) is not None:
                variable = f"NOISESIEVE_{name.upper()}_{flag.upper()}"
                option.envvar = [variable, f"NOISESIEVE_{flag.upper()}"] if flag in common else variable


def read_files(command: Any, folders: Sequence[Path], wanted: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return defaults for every command, from the file that the user names, or from those in the working folder.

    These are not read where the working folder is in one of `folders`, those of the data: they may be a stranger's, and
    would set the output, the weights and more. That is said.
    """
    commands: dict[str, Any] = getattr(command, "commands", {})
    defaults: dict[str, dict[str, Any]] = {name: {} for name in commands}
    common = {name: _common_options(name, commands) for name in commands}
    if wanted is not None and not wanted.is_file():
        raise UsageError(f"--config {wanted}: no such file.", "Check the path.")
    files = [Path("pyproject.toml"), Path("noisesieve.toml")] if wanted is None else [wanted]
    here = Path.cwd().resolve()
    for path in files:
        table = ("tool", "noisesieve") if path.name == "pyproject.toml" else ()
        values, file = _table(path, table, strict=wanted is not None), str(path)
        if values and wanted is None and any(here.is_relative_to(folder.resolve()) for folder in folders):
            say(f"{path} is not read, since it is in the folder of the data. If it is yours: --config {path}")
            continue
        shared = {key: value for key, value in values.items() if not isinstance(value, dict)}
        for key, value in values.items():
            if isinstance(value, dict) and key not in commands:
                raise UsageError(f"{file}: no command {key!r}.", f"Choose {', '.join(commands)}.")
        _refuse_unknown(file, shared, {flag for flags in common.values() for flag in flags}, table)
        for name, sub in commands.items():
            specific = values.get(name, {})
            if not isinstance(specific, dict):
                specific = {}  # an option with the name of a command, such as `cache`
            _refuse_unknown(file, specific, _options(sub), table)
            for key, value in shared.items():
                if (flag := key.replace("-", "_")) in common[name]:
                    defaults[name][_options(sub)[flag]] = value
            for key, value in specific.items():
                defaults[name][_options(sub)[key.replace("-", "_")]] = value
    return defaults


def folders_of_data(values: Mapping[str, Any]) -> list[Path]:
    """Return the folders that a command's data is in, from the values of its command line: datasets, runs, models."""
    folders = []
    for name in DATA_PARAMETERS:
        for value in values.get(name) or () if isinstance(values.get(name), list | tuple) else (values.get(name),):
            if value:
                path = Path(value)
                folders += [path if path.is_dir() else path.parent, *(_recorded(path) if name in RUNS else ())]
    return folders


def _recorded(run: Path) -> list[Path]:
    """Return the folders of the dataset that the user's own run was made from; a stranger's says what it likes."""
    try:
        document = read_json(run / "run.json")
        parts = {name: value for name, value in document.items() if name not in ("digest", "signature")}
        if not is_sealed(document["signature"], digest(parts).encode()):
            return []
        location = document["location"]
        paths = [Path(location[name]) for name in ("path", "root") if name in location]
        return [path if path.is_dir() else path.parent for path in paths]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _common_options(name: str, commands: dict[str, Any]) -> set[str]:
    """Return the flags of a command that can be set without naming the command."""
    own = _options(commands[name])
    if name == "scan":
        return set(own)
    shared: set[str] = getattr(commands[name].callback, "shared_options", set())
    elsewhere = {flag for other, sub in commands.items() if other != name for flag in _options(sub)}
    return {flag for flag, parameter in own.items() if parameter in shared or flag not in elsewhere or flag in _BASIC}


_BASIC = frozenset(("json", "quiet"))  # of every command


def _table(file: Path, keys: tuple[str, ...], *, strict: bool) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        values: Any = tomllib.loads(read_regular(file, most=LONGEST).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        if keys and not strict:
            return {}  # a broken pyproject.toml may belong to another tool
        raise UsageError(f"{file}{_problem(error, file)}.", "Fix it, or remove it.") from error
    for key in keys:
        values = values.get(key, {}) if isinstance(values, dict) else {}
    return values if isinstance(values, dict) else {}


def _problem(error: Exception, file: Path) -> str:
    """Return what is wrong with a file of options, with the line where there is one."""
    if isinstance(error, UnicodeDecodeError):
        return f":{line_that_is_not_utf8(file.read_bytes())}: not UTF-8 ({error.reason})"
    if isinstance(error, RecursionError):
        return ": nested too deeply"
    return f": cannot be read: {error.strerror}" if isinstance(error, OSError) else f": not TOML ({error})"


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


def _refuse_unknown(file: str, given: dict[str, Any], known: Iterable[str], table: tuple[str, ...]) -> None:
    for key in given:
        if key.replace("-", "_") not in known:
            example = f"[{'.'.join((*table, 'check'))}]"
            raise UsageError(
                f"{file}: no option {key!r}.",
                f"See `noisesieve scan --help`; options of another command stand in its table, such as {example}.",
            )
