"""Paired differences with bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest

from noisesieve.measure.bootstrap import f1_difference, precision_difference
from noisesieve.measure.metrics import average_precision, detection


def test_differences_are_those_of_the_metrics_and_their_intervals_hold_them() -> None:
    rng = np.random.default_rng(0)
    wanted = rng.random(800) < 0.2
    good, poor = wanted + rng.normal(size=800) * 0.6, wanted + rng.normal(size=800) * 1.5
    lead = precision_difference(good, poor, wanted)
    first, second = average_precision(good, wanted), average_precision(poor, wanted)
    assert first is not None
    assert second is not None
    assert lead.value == pytest.approx(first - second)
    assert 0 < lead.low < lead.value < lead.high
    verdict = f1_difference(good > 0.6, poor > 0.6, wanted)
    ours, theirs = detection(good > 0.6, wanted).f1, detection(poor > 0.6, wanted).f1
    assert ours is not None
    assert theirs is not None
    assert verdict.value == pytest.approx(ours - theirs)
    assert verdict.low < verdict.value < verdict.high


def test_a_method_does_not_lead_itself() -> None:
    rng = np.random.default_rng(0)
    wanted, suspicion = rng.random(200) < 0.2, rng.random(200)
    none = precision_difference(suspicion, suspicion, wanted)
    assert (none.value, none.low, none.high) == (0, 0, 0)
