"""The options and output of `noisesieve explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from noisesieve.cli import options as o
from noisesieve.cli.signals import running
from noisesieve.cli.terminal import console, print_json, results
from noisesieve.commands.command_settings import ExplainSettings
from noisesieve.core.options import build_settings

if TYPE_CHECKING:
    from rich.text import Text

    from noisesieve.commands.explain import Explanation, MarginHistory, RowScores

BLOCKS = "▁▂▃▄▅▆▇█"
BAR = 24
RANKED_BY = {
    "suspicion": "This closed form decides; cross-entropy heads and the noise model only help to rank.",
    "label_probability": "This closed form decides; the probability of the given label ranks.",
}

Name = Annotated[str, typer.Argument(help="Id, path, or row number from 0.", metavar="ID")]


@o.with_options(ExplainSettings)
def explain(
    run: o.Run,
    name: Name,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    options: o.Options,
) -> None:
    """Explain a verdict: its terms, the most probable classes, the margin of each epoch, and similar images.

    Example: noisesieve explain my-run cat/0012.jpg
    """
    settings = build_settings(ExplainSettings, options)
    from noisesieve.commands.explain import explain as explain_row

    with running(quiet) as session:
        explanation = explain_row(run, name, settings, session=session)
    with results():
        if as_json:
            print_json(explanation.to_document())
        else:
            _show(explanation, quiet=quiet)


def _show(explanation: Explanation, *, quiet: bool) -> None:
    from noisesieve.cli.terminal import plain_text

    out = console(stderr=False)

    def say(text: str, style: str = "") -> None:
        out.print(plain_text(text, style), soft_wrap=True)

    say(f"{explanation.id}: {explanation.verdict}", "bold")
    scores = explanation.scores
    if scores is None:
        say(f"It was not scored: {explanation.status}")
        return
    say(sentence(explanation, scores))
    if quiet:
        return
    say("")
    say(arithmetic(explanation, scores))
    eps, beta = explanation.sieve_eps, explanation.beta
    say(f"  with l(j) = −ln(f[j] + {eps:g}): loss = l(given), CR = −{beta:g} Σ π[j] l(j), α = mean l + CR")
    say(f"  with the paper's floor 1e-8: {scores.paper_verdict}; rank {scores.rank:,} of {explanation.of:,}")
    say(f"  {RANKED_BY[explanation.ranked_by]}")
    say("")
    for label, chance in explanation.top:
        mark = "given" if label == explanation.label else "suggested" if label == scores.suggested_label else ""
        out.print(plain_text(f"  {chance:7.2%} {'█' * round(BAR * chance):<{BAR}} {label}  {mark}".rstrip()))
    if explanation.label not in {label for label, _ in explanation.top}:
        out.print(plain_text(f"  {scores.label_probability:7.2%} {'':<{BAR}} {explanation.label}  given"))
    say("")
    _show_margin_history(explanation.margin_history, scores.flagged_epochs or 0.0)
    for group in explanation.neighbours or []:
        say(f"nearest clean {group.label!r}:" if group.examples else f"no clean image is labelled {group.label!r}")
        for example in group.examples:
            say(f"  {example.id}  (similarity {example.similarity:.3f})")
    if explanation.file:
        say(f"image: {explanation.file}")


def sentence(explanation: Explanation, scores: RowScores) -> str:
    """Return the verdict in one sentence."""
    given, probability = explanation.label, scores.label_probability
    wrong = scores.corruption_probability
    if explanation.decided is not None:
        return f"A person has decided: {explanation.decided}; the model gives the label {given!r} {probability:.1%}."
    odds = f"wrong with probability {'>99.9%' if wrong > 0.999 else format(wrong, '.1%')}"
    if explanation.too_few:
        odds = "there are too few labels to tell how probable it is that it is wrong"
    if explanation.verdict == "corrupted":
        like = (
            f"it looks like {scores.suggested_label!r}" if scores.suggested_label else "no other class is more probable"
        )
        return (
            f"The label {given!r} has a larger loss than the average class (f = {probability:.2g}), so it is flagged; "
            f"{like}; {odds}."
        )
    best = scores.predicted_label
    if scores.margin >= 0:
        return f"The label {given!r} would be flagged (f = {probability:.2g}), but the row is trusted: it is clean."
    if best == given:
        return f"The label {given!r} is also the predicted class (f = {probability:.2g}); {odds}."
    return (
        f"The predicted class is {best!r}, but {given!r} (f = {probability:.2g}) has a smaller loss than the average "
        f"class, so it is not flagged; {odds}."
    )


def arithmetic(explanation: Explanation, scores: RowScores) -> str:
    """Return the closed form as one line of numbers."""
    sign = "≥" if scores.margin >= 0 else "<"
    return (
        f"  loss {scores.loss:.3f} + CR {scores.regularizer:.3f} = {scores.regularized_loss:.3f} {sign} "
        f"α {scores.threshold:.3f}: margin {scores.margin:+.3f}, {explanation.verdict}"
    )


def _show_margin_history(margin_history: MarginHistory | None, flagged_epochs: float) -> None:
    from rich.text import Text

    out = console(stderr=False)
    if margin_history is None:
        out.print(Text("margin by epoch: not stored for this row"))
        return
    line = Text(f"margin, epochs {margin_history.first_epoch} to {margin_history.last_epoch}: ")
    line.append_text(sparkline(margin_history.margins))
    low, high = min(margin_history.margins), max(margin_history.margins)
    out.print(line)
    dropped = f"dropped in {flagged_epochs:.0%} of the sieve epochs"
    floor = f"with the floor of the training loop ({margin_history.loop_eps:g})"
    out.print(Text(f"  from {low:+.2f} to {high:+.2f}, {floor};\n  {dropped}", "dim"))


def sparkline(margins: list[float]) -> Text:
    """Return one block per epoch: green below the threshold, red at or above it."""
    from rich.text import Text

    low, high = min(*margins, 0.0), max(*margins, 0.0)
    line = Text()
    for margin in margins:
        height = 0 if high == low else round((margin - low) / (high - low) * (len(BLOCKS) - 1))
        line.append(BLOCKS[height], "red" if margin >= 0 else "green")
    return line
