"""The headline of a run in plain words: the same in terminal, page and Markdown.

Three words are never mixed. *Flagged* is the verdict. *Expected wrong* is the sum of the corruption probabilities of
the flagged rows. The *estimated noise rate* is over all rows, and has the one interval.
"""

from __future__ import annotations

from noisesieve.core.summary import Summary

BUDGETS_SAID = 2


def noise_rate_sentence(summary: Summary) -> str:
    """Return the estimated noise rate with its interval, or that there are too few labels to tell."""
    rate = summary.estimated_noise_rate
    if rate.value is None:
        return "No image can be read."
    interval = f"{rate.value:.1%} (95 % interval {rate.low:.1%} to {rate.high:.1%})"
    if rate.is_vague:
        return f"{summary.flagged.of:,} labels are too few to tell how many are wrong: estimated noise rate {interval}."
    return f"Estimated noise rate: {interval}."


def budget_sentence(summary: Summary) -> str:
    """Return what it brings to look at the first rows, or an empty text where nothing is flagged or known."""
    flagged = summary.flagged.rows
    if summary.estimated_noise_rate.is_vague:
        return ""
    useful = [step for step in summary.budget if step.first <= max(10, flagged)]
    if not flagged or not useful:
        return ""
    said = sorted({useful[len(useful) // 2].first, useful[-1].first})[-BUDGETS_SAID:]
    steps = [step for step in useful if step.first in said]
    parts = [f"{step.first:,}: about {step.expected_wrong:,.0f} are wrong" for step in steps]
    return f"Look at the first {parts[0]}" + "".join(f"; at {part}" for part in parts[1:]) + "."
