"""The command line: options → settings → commands. The only place that prints, reads the environment or exits."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable

import typer
from typer.main import get_command

import noisesieve
from noisesieve.cli import (
    apply,
    bench,
    cache,
    check,
    config,
    diff,
    doctor,
    evaluate,
    explain,
    export,
    inject,
    retrain,
    review,
    scan,
    waive,
)
from noisesieve.cli.options import GroupedCommand
from noisesieve.cli.terminal import say, say_error
from noisesieve.core.errors import NoisesieveError, OutputError


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"noisesieve {noisesieve.__version__}")
        raise typer.Exit


def top(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Find the wrong labels in an image dataset.

    Options can also be set in noisesieve.toml, in [tool.noisesieve] of pyproject.toml, and by variables such as
    NOISESIEVE_DEVICE or NOISESIEVE_CHECK_DEVICE.

    Example: noisesieve scan ./dataset
    """


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "scan": (scan.scan, "Find the wrong labels of a dataset."),
    "review": (review.review, "Write a page of the suspects, to look and decide."),
    "export": (export.export, "Export rows to an annotation tool or a notebook."),
    "apply": (apply.apply, "Write a corrected dataset from decisions."),
    "explain": (explain.explain, "Explain the verdict of one row."),
    "retrain": (retrain.retrain, "Train a model on the clean rows of a run."),
    "check": (check.check, "Pass or fail a new batch, without training."),
    "waive": (waive.waive, "Record that labels were reviewed and are right."),
    "diff": (diff.diff, "Compare the suspects of two runs."),
    "doctor": (doctor.doctor, "Check a dataset before a scan."),
    "cache": (cache.cache, "List or clear the cache."),
    "inject": (inject.inject, "Plant known label errors."),
    "evaluate": (evaluate.evaluate, "Measure precision and recall of a run."),
    "bench": (bench.bench, "Compare noisesieve with its peers on your data."),
}


def build_app() -> typer.Typer:
    """Return the command line with all commands of COMMANDS."""
    app = typer.Typer(
        name="noisesieve",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(top)
    for name, (command, line) in COMMANDS.items():
        app.command(name, cls=GroupedCommand, short_help=line, no_args_is_help=command is not cache.cache)(command)
    return app


def main() -> None:
    """Run the command line. Every error is one line and an exit code; a traceback is shown only with --debug."""
    try:
        _run()
    except SystemExit as left:
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            raise
        # A process of torchrun ends here: while the interpreter ends, gloo's threads abort it about once in ten times,
        # and torchrun then kills the process that still writes the report.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(left.code if isinstance(left.code, int) else int(left.code is not None))


def _run() -> None:
    _open_closed_streams()
    signal.signal(signal.SIGINT, lambda number, frame: sys.exit(130))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an ASCII terminal must not end the command
    # Before torch is loaded: waiting threads spin only briefly. Two threads on two cores, resnet8 at 16 px, images/s:
    # the default of 300,000 spins gives 5,100 alone and 140 beside two busy jobs; 10,000 spins give 4,500 and 1,800.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ["PYTHONSAFEPATH"] = "1"  # no process that is started imports from the working folder: it may be the data
    try:
        command = get_command(build_app())
        config.use_environment(command)
        command.main(prog_name="noisesieve")
    except NoisesieveError as error:
        if "--debug" in sys.argv:
            raise
        say_error(error)
        sys.exit(error.exit_code)
    except OSError as error:  # the system's fault, not ours: a full disk, a lost network folder
        if "--debug" in sys.argv:
            raise
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        say(f"noisesieve: {place}{error.strerror or error}.")
        sys.exit(OutputError.exit_code)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        say(f"noisesieve: unexpected {type(error).__name__}: {error}. Run again with --debug.")
        sys.exit(70)


def _open_closed_streams() -> None:
    """Open streams that are closed at start (`2>&-`), or the next opened file would get their descriptor."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
