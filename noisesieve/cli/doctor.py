"""The options and output of `noisesieve doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from noisesieve.cli import options as o
from noisesieve.cli.signals import running
from noisesieve.cli.terminal import console, print_json, results
from noisesieve.commands.command_settings import DoctorSettings
from noisesieve.commands.scan_settings import scan_settings
from noisesieve.core.errors import InputError
from noisesieve.core.options import OUTPUT

if TYPE_CHECKING:
    from noisesieve.commands.doctor import Diagnosis

LISTED = 5

Strict = Annotated[bool, o.extra("Exit 3 if there is a finding marked with `!`.", "--strict", group=OUTPUT)]


@o.with_options(DoctorSettings, without=("trusted_column", "cache_budget", "max_pixels"))
def doctor(
    data: o.Data,
    strict: Strict = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """Check a dataset before a scan: broken files, duplicates, odd classes and sizes, and the cost of a scan.

    Example: noisesieve doctor ./dataset
    """
    settings = scan_settings(data, **options)
    from noisesieve.commands.doctor import diagnose

    with running(quiet) as session:
        diagnosis = diagnose(settings, session=session)
    with results():
        if as_json:
            print_json(diagnosis)
        else:
            _show(diagnosis, quiet=quiet)
    if strict and diagnosis.wrong:
        kinds = ", ".join(finding.kind for finding in diagnosis.findings if finding.wrong)
        raise InputError(f"{data}: {kinds} (--strict).", "Correct them, or leave --strict out.")


def _show(diagnosis: Diagnosis, *, quiet: bool) -> None:
    from noisesieve.cli.terminal import plain_text
    from noisesieve.core.text import duration

    out = console(stderr=False)
    head = f"{diagnosis.examples:,} images, {diagnosis.readable:,} readable, in {diagnosis.classes:,} classes"
    out.print(plain_text(head if diagnosis.findings else f"{head}: no findings", "bold"))
    for finding in diagnosis.findings:
        style = "yellow" if finding.wrong else ""
        out.print(plain_text(f"{'!' if finding.wrong else '·'} {finding.text}: {finding.count:,}", style))
        if not quiet:
            for example in finding.examples[:LISTED]:
                out.print(plain_text(f"    {example}"), soft_wrap=True)
            if finding.count > LISTED:
                out.print(plain_text(f"    and {finding.count - LISTED:,} more", "dim"))
    cost = diagnosis.estimate
    if cost is not None and not quiet:
        out.print()
        out.print(plain_text("Plan of a scan on this machine:"))
        out.print(plain_text(f"  {diagnosis.plan}"), soft_wrap=True)
        out.print(
            plain_text(
                f"  at most about {duration(cost.seconds)}, {cost.memory_bytes / 2**20:,.0f} MiB of memory, "
                f"{cost.cache_bytes / 2**20:,.0f} MiB of cache"
            )
        )
