"""Typer parameters from the options that settings declare, and the options that every command has."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand

from noisesieve.cli.config import folders_of_data, read_files
from noisesieve.core.errors import UsageError
from noisesieve.core.options import (
    DATA,
    GATE,
    MACHINE,
    NETWORK,
    OUTPUT,
    REQUIRED,
    TRAINING,
    Option,
    default_of,
    option_fields,
)

Options = dict[str, object]  # the values of a command's options, by field
GROUPS = (DATA, GATE, OUTPUT, NETWORK, TRAINING, MACHINE)  # in the order of --help
OTHER = "Other"

Data = Annotated[
    Path, typer.Argument(help="An image folder, or a .csv, .tsv, .jsonl or .parquet table.", metavar="DATA")
]
# `--decisions a.csv b.csv`: an option has one value, so the words after it are arguments.
MoreDecisions = Annotated[list[Path] | None, typer.Argument(hidden=True, show_default=False)]
Run = Annotated[Path, typer.Argument(help="A run folder that `scan` has finished.", metavar="RUN")]


def extra(text: str, *flags: str, group: str = OTHER, metavar: str | None = None) -> Any:
    """Return an option that belongs to the command line alone, not to the settings."""
    return typer.Option(
        *flags, help=text, show_default=False, show_envvar=False, rich_help_panel=group, metavar=metavar
    )


Json = Annotated[bool, extra("Print one JSON document on stdout.", "--json")]
Quiet = Annotated[bool, extra("No progress, no tables.", "--quiet", "-q")]
Debug = Annotated[bool, extra("Show tracebacks.", "--debug")]
Config = Annotated[
    Path | None, extra("Read options from this file, not from the working folder's.", "--config", metavar="FILE")
]
MaxTime = Annotated[
    str | None, extra("Stop at a checkpoint after 90s, 15m or 2h (exit 143).", group=OUTPUT, metavar="TIME")
]


def with_more_decisions(options: Options, more: list[Path] | None) -> Options:
    """Return the options with further files after --decisions."""
    if not more:
        return options
    if not options.get("decisions"):
        raise UsageError(
            f"One dataset or run, please: {more[0]} is a second one.",
            "Join the tables into one file, or scan one after the other. Decisions stand after --decisions.",
        )
    given = options["decisions"]
    return {**options, "decisions": [*(given if isinstance(given, list | tuple) else [given]), *more]}


def with_options(kind: type, *, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one parameter per option of these settings; it receives their values as `options`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "options"]
        declared = {name: option for name, option in option_fields(kind).items() if name not in without}
        parameters = [_parameter(kind, name, hint, option) for name, (hint, option) in declared.items()]

        def run(config: Path | None = None, **values: Any) -> None:  # `parse_args` has read the file
            options = {name: values.pop(name) for name in declared}
            command(**values, options={name: value for name, value in options.items() if value is not None})

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        named = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config)
        signature = inspect.Signature([*(p.replace(kind=p.KEYWORD_ONLY) for p in own), named, *parameters])
        setattr(run, "__signature__", signature)  # noqa: B010, what Typer reads
        setattr(run, "declared_options", {name: option for name, (_, option) in declared.items()})  # noqa: B010
        setattr(run, "shared_options", {name for name, (_, option) in declared.items() if option.shared})  # noqa: B010
        return run

    return decorate


def _parameter(kind: type, name: str, hint: Any, declared: Option) -> inspect.Parameter:
    """Return the Typer parameter of one option."""
    default = default_of(kind, name)
    required = default is REQUIRED
    annotation = _annotation(hint, declared)
    if declared.parse is not None or isinstance(default, tuple):
        default = None  # parsed later; the settings have the default
    shown = "" if required else declared.shown or _shown(default)
    flags = declared.flags or (declared.flag(name),)
    if annotation is bool and not required and default is False and "/" not in flags[0]:
        flags = (flags[0],)
    info = typer.Option(
        *flags,
        help=f"{declared.help} [default: {shown}]" if shown else declared.help,
        show_default=False,
        show_envvar=False,
        metavar=("" if callable(declared.choices) else "|".join(declared.choices))
        or declared.metavar
        or _metavar(annotation),
        rich_help_panel=declared.group or OTHER,
    )
    value = inspect.Parameter.empty if required else default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=Annotated[annotation, info]
    )


def _annotation(hint: Any, declared: Option) -> Any:
    if hint == tuple[Path, ...]:
        return list[str] | None
    return str | None if declared.parse is not None else hint


def _shown(default: object) -> str:
    return "" if default is None or isinstance(default, bool) else str(default)


def _metavar(annotation: Any) -> str | None:
    kinds = annotation.__args__ if isinstance(annotation, types.UnionType) else (annotation,)
    names = {bool: None, int: "N", float: "X", Path: "PATH"}
    return next((names[kind] for kind in kinds if kind in names), "TEXT")


class GroupedCommand(TyperCommand):
    """A command whose --help lists its options in groups, the common ones first, and that takes options from files."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line. What it does not say may come from files, unless these are a stranger's."""
        if not ctx.resilient_parsing and not {"-h", "--help"} & set(args):  # help works even if a file has an error
            # The values of the command line and the environment alone; what is wrong with them is named below.
            given = self.make_context(ctx.info_name, [*args], parent=ctx.parent, resilient_parsing=True).params
            files = read_files(ctx.find_root().command, folders_of_data(given), given.get("config"))
            ctx.default_map = files[str(ctx.info_name)]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        arguments = [p for p in self.params if isinstance(p, TyperArgument) and not p.hidden]
        return ["[OPTIONS]", *(str(argument.metavar or argument.name).upper() for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then one section per group of options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, TyperArgument) and parameter.hidden:
                continue
            if isinstance(parameter, TyperArgument):
                record = str(parameter.metavar or parameter.name).strip("[].").upper(), parameter.help or ""
                sections.setdefault("Arguments", []).append(record)
            elif (shown := parameter.get_help_record(ctx)) is not None:
                declared = getattr(self.callback, "declared_options", {}).get(parameter.name)
                if declared is not None and callable(declared.choices):
                    every = f"{declared.help.rstrip('.')}: {', '.join(declared.allowed())}."
                    shown = shown[0], shown[1].replace(declared.help, every)
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or OTHER, []).append(shown)
        for group in ("Arguments", *GROUPS, OTHER):
            if group in sections:
                with formatter.section(group):
                    formatter.write_dl(sections[group])
