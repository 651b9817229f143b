"""Room 6, CHECK: report + policy → pass or fail, written as JUnit XML, SARIF, Markdown or GitHub annotations."""

from __future__ import annotations

from noisesieve.gate import github, junit, markdown, sarif
from noisesieve.gate.policy import BatchCounts, RuleResult, apply_policy, count_batch
from noisesieve.gate.result import GateResult

WRITERS = {"junit": junit.render, "sarif": sarif.render, "markdown": markdown.render}

__all__ = ["WRITERS", "BatchCounts", "GateResult", "RuleResult", "apply_policy", "count_batch", "github"]
