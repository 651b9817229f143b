"""Room 6, CHECK: report + policy → pass or fail, in the language of whoever asks."""

from __future__ import annotations

from noisesieve.gate import github, junit, markdown, sarif
from noisesieve.gate.policy import Batch, Rule, judge_batch, measure

WRITERS = {"junit": junit.render, "sarif": sarif.render, "markdown": markdown.render}

__all__ = ["WRITERS", "Batch", "Rule", "github", "judge_batch", "measure"]
