"""`noisesieve explain`: why was this (not) flagged?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisesieve.cli import options as o
from noisesieve.cli.stop import watched
from noisesieve.cli.terminal import console, results

if TYPE_CHECKING:
    from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"
BAR = 24

Name = Annotated[str, typer.Argument(help="Id, path, or row number from 0.", metavar="ID")]


def explain(
    run: o.Run,
    name: Name,
    data: o.MovedData = None,
    root: o.MovedRoot = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Why this verdict: its arithmetic, the course of the margin, the most probable classes, the pictures alike.

    Example: noisesieve explain my-run cat/0012.jpg
    """
    from noisesieve.explain import explain as find
    from noisesieve.report import read_report

    with watched(quiet) as (watcher, pause):
        found = find(read_report(run), name, data=data, root=root, watcher=watcher, pause=pause)
    with results():
        if as_json:
            print(json.dumps(found))
        else:
            _show(found, quiet=quiet)


def _show(found: dict[str, Any], *, quiet: bool) -> None:
    from noisesieve.cli.summary import plain_text

    out = console(stderr=False)

    def say(text: str, style: str = "") -> None:
        out.print(plain_text(text, style), soft_wrap=True)

    if found["margin"] is None:
        say(f"{found['id']}: {found['verdict']}", "bold")
        say(f"It was not judged: {found['status']}")
        return
    say(f"{found['id']}: {found['verdict']}", "bold")
    say(sentence(found))
    if quiet:
        return
    say("")
    say(arithmetic(found))
    eps, beta = found["sieve_eps"], found["beta"]
    say(f"  with l(j) = −ln(f[j] + {eps:g}): loss = l(given), CR = −{beta:g} Σ π[j] l(j), α = mean l + CR")
    paper = "agrees" if found["paper_verdict"] == found["verdict"] else f"says {found['paper_verdict']}"
    say(f"  the paper's floor 1e-8 {paper}; rank {found['rank']:,} of {found['of']:,}")
    say("")
    for label, chance in found["top"]:
        mark = "given" if label == found["label"] else "suggested" if label == found["suggested_label"] else ""
        out.print(plain_text(f"  {chance:7.2%} {'█' * round(BAR * chance):<{BAR}} {label}  {mark}".rstrip()))
    if found["label"] not in {label for label, _ in found["top"]}:
        out.print(plain_text(f"  {found['label_probability']:7.2%} {'':<{BAR}} {found['label']}  given"))
    say("")
    _show_course(found)
    for group in found["neighbours"] or []:
        say(
            f"nearest clean {group['label']!r}:"
            if group["examples"]
            else f"no clean picture is called {group['label']!r}"
        )
        for example in group["examples"]:
            say(f"  {example['id']}  (likeness {example['similarity']:.3f} of 1)")
    if found["file"]:
        say(f"picture: {found['file']}")


def sentence(found: dict[str, Any]) -> str:
    """The verdict in words."""
    given, chance = found["label"], found["label_probability"]
    wrong = found["corruption_probability"]
    odds = f"wrong with probability {'>99.9%' if wrong > 0.999 else format(wrong, '.1%')}"
    if found["verdict"] == "corrupted":
        like = (
            f"and looks like {found['suggested_label']!r}" if found["suggested_label"] else "and nothing looks better"
        )
        return f"The label {given!r} fits worse than the classes do on average (f = {chance:.2g}) {like}; {odds}."
    best = found["predicted_label"]
    if found["margin"] >= 0:
        return f"The label {given!r} would be flagged (f = {chance:.2g}), but the row is trusted: clean by decree."
    if best == given:
        return f"The label {given!r} is what the network sees (f = {chance:.2g}); {odds}."
    return (
        f"The network prefers {best!r}, but {given!r} (f = {chance:.2g}) still fits better than the classes do on "
        f"average, so it is not flagged; {odds}."
    )


def arithmetic(found: dict[str, Any]) -> str:
    """The closed form in one line of numbers."""
    sign = "≥" if found["margin"] >= 0 else "<"
    return (
        f"  loss {found['loss']:.3f} + CR {found['regularizer']:.3f} = {found['regularized_loss']:.3f} {sign} "
        f"α {found['threshold']:.3f}: margin {found['margin']:+.3f}, {found['verdict']}"
    )


def _show_course(found: dict[str, Any]) -> None:
    from rich.text import Text

    course, out = found["course"], console(stderr=False)
    if course is None:
        out.print(Text("margin by epoch: not kept for this row"))
        return
    line = Text(f"margin, epochs {course['first_epoch']} to {course['last_epoch']}: ")
    line.append_text(sparkline(course["margins"]))
    low, high = min(course["margins"]), max(course["margins"])
    out.print(line)
    dropped = f"left out in {found['flagged_epochs']:.0%} of its epochs"
    floor = f"as the sieve inside the training saw it (floor {course['loop_eps']:g})"
    out.print(Text(f"  from {low:+.2f} to {high:+.2f}, {floor};\n  {dropped}", "dim"))


def sparkline(margins: list[float]) -> Text:
    """One block an epoch: below the threshold green, at or above it red."""
    from rich.text import Text

    low, high = min(*margins, 0.0), max(*margins, 0.0)
    line = Text()
    for margin in margins:
        height = 0 if high == low else round((margin - low) / (high - low) * (len(BLOCKS) - 1))
        line.append(BLOCKS[height], "red" if margin >= 0 else "green")
    return line
