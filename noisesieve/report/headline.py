"""The headline of a run in plain words: the same in terminal, page and Markdown.

Three words are never mixed. *Flagged* is the verdict. *Expected wrong* is the sum of the corruption probabilities of
the flagged rows. The *estimated noise rate* is over all rows, and has the one interval. Where the number of flagged
rows was chosen to fit that estimate, the headline says so: the two agree by choice, not by measurement.
"""

from __future__ import annotations

from noisesieve.report.summary import Summary

BUDGETS_SAID = 2


def flagged_sentence(summary: Summary) -> str:
    """Return how many labels are flagged, and what that number is: a choice by the estimated noise rate, or a count."""
    count = f"{summary.flagged.rows:,} of {summary.flagged.of:,} labels are flagged"
    return f"{count}: {count_sentence(summary)}" if count_sentence(summary) else f"{count}."


def count_sentence(summary: Summary) -> str:
    """Return what the number of flagged rows is; an empty text where nothing is flagged or known."""
    if summary.estimated_noise_rate.is_vague or not summary.flagged.rows:
        return ""
    if summary.is_count_chosen:
        return "as many as the estimated noise rate says are wrong, the most suspicious ones."
    return f"about {summary.flagged.expected_wrong:,.0f} of them are expected to be wrong."


def nothing_flagged_sentence(summary: Summary) -> str:
    """Return what it means that nothing is flagged; an empty text if something is."""
    if summary.flagged.rows or not summary.flagged.of:
        return ""
    return (
        "Nothing is flagged: no label is less probable than the average class, by this model. That proves no label "
        "right. A random sample that a person decides tells more."
    )


def noise_rate_sentence(summary: Summary) -> str:
    """Return the estimated noise rate with its interval, or that there are too few labels to tell."""
    rate = summary.estimated_noise_rate
    if rate.value is None:
        return "No image can be read."
    interval = f"{rate.value:.1%} (95 % interval {rate.low:.1%} to {rate.high:.1%})"
    if rate.is_vague:
        return (
            f"{summary.flagged.of:,} labels are too few to tell how many are wrong (95 % interval of the noise rate: "
            f"{rate.low:.0%} to {rate.high:.0%}). The order of the suspects is what is known."
        )
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
    parts = [f"{step.expected_wrong:,.0f} of the first {step.first:,}" for step in steps]
    return f"By the same estimate about {' and '.join(parts)} are wrong."
