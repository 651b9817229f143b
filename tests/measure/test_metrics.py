"""The figures themselves, against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from noisesieve.bench.peers import MarginSum, vote
from noisesieve.measure.metrics import area_under_roc, average_precision, calibration, detection, precision_at


def test_ranking_figures_agree_with_scikit_learn_even_with_ties() -> None:
    rng = np.random.default_rng(0)
    for rows in (20, 200, 2000):
        wrong = rng.random(rows) < 0.3
        suspicion = np.round(rng.random(rows) + wrong * 0.3, 1)  # many ties
        assert average_precision(suspicion, wrong) == pytest.approx(metrics.average_precision_score(wrong, suspicion))
        assert area_under_roc(suspicion, wrong) == pytest.approx(metrics.roc_auc_score(wrong, suspicion))


def test_a_share_of_nothing_is_none() -> None:
    nothing, some = np.zeros(4, dtype=np.bool_), np.array([True, False, False, False])
    assert detection(nothing, some).precision is None
    assert detection(nothing, some).recall == 0
    assert detection(some, nothing).recall is None
    assert detection(nothing, nothing).f1 is None
    assert average_precision(np.arange(4.0), nothing) is None
    assert area_under_roc(np.arange(4.0), nothing) is None


def test_detection_counts_by_hand() -> None:
    flagged, wrong = np.array([1, 1, 1, 0, 0], dtype=np.bool_), np.array([1, 1, 0, 1, 0], dtype=np.bool_)
    found = detection(flagged, wrong)
    assert (found.flagged, found.right, found.wanted) == (3, 2, 3)
    assert (found.precision, found.recall, found.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3))


def test_precision_at_k_leaves_out_depths_that_are_not_there() -> None:
    wrong = np.array([True, False, True, False])
    assert precision_at(np.array([2, 0, 1, 3]), wrong, [1, 2, 4, 10]) == {1: 1.0, 2: 1.0, 4: 0.5}


def test_calibration_is_zero_where_the_word_holds_and_large_where_not() -> None:
    rng = np.random.default_rng(0)
    said = rng.random(100_000)
    honest = calibration(said, rng.random(100_000) < said)
    assert honest.ece < 0.01
    assert sum(row["rows"] for row in honest.bins) == 100_000
    boasting = calibration(np.full(1000, 0.99), rng.random(1000) < 0.5)
    assert boasting.ece == pytest.approx(0.49, abs=0.05)
    assert calibration(np.array([1.0, 0.0]), np.array([True, False])).brier == 0


def test_aum_is_the_mean_margin_over_every_time_seen() -> None:
    import torch

    margins = MarginSum(torch.tensor([0, 1]))
    margins.add(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([0]))
    margins.add(torch.tensor([[1.0, 2.0, 0.0], [5.0, 1.0, 2.0]]), torch.tensor([0, 1]))
    assert margins.mean().tolist() == [0.5, -4.0]


def test_neighbours_outvote_a_row_among_strangers() -> None:
    import torch

    torch.manual_seed(0)
    points = torch.cat([torch.randn(30, 4) + 8, torch.randn(30, 4) - 8])
    labels = torch.cat([torch.zeros(30), torch.ones(30)]).long()
    labels[3] = 1
    suspicion, flagged = vote(points, labels, 2)
    assert flagged.nonzero()[0].tolist() == [3]
    assert suspicion.argmax() == 3
