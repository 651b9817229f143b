"""The noise model, the rank and the probabilities of rows that were scored out of fold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from noisesieve.core.records import Scores
from noisesieve.sieve.calibrate import apply_calibration, fit_calibration, never_rising
from noisesieve.sieve.decide import FLOORS, choose_floor, decide
from noisesieve.sieve.formulas import geometric_mean, in_float64, margin
from noisesieve.sieve.noise_model import STRENGTHS, fit_noise_model, probability_of_wrong, with_temperature
from noisesieve.sieve.ranking import CE_WEIGHT, fit_rank_model, suspicion


def draw(rows: int, classes: int, *, spread: float = 3.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Honest probabilities (N, K), and true classes that are drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn((rows, classes), generator=generator, dtype=torch.float64).mul(spread).softmax(dim=1)
    return probs, torch.multinomial(probs, 1, generator=generator).squeeze(1)


def flip(truth: Tensor, classes: int, share: float, *, neighbour: bool, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Labels with flips, to the next class or to any other, and which rows they are."""
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(truth), generator=generator) < share
    step = torch.ones_like(truth) if neighbour else torch.randint(1, classes, truth.shape, generator=generator)
    return torch.where(wrong, (truth + step) % classes, truth), wrong


def test_the_noise_rate_of_honest_probabilities_is_found_and_the_posterior_is_calibrated() -> None:
    probs, truth = draw(4000, 5)
    labels, wrong = flip(truth, 5, 0.3, neighbour=True)
    chance = probability_of_wrong(probs, labels, fit_noise_model(probs, labels))
    assert abs(float(chance.mean()) - float(wrong.double().mean())) < 0.03
    for low in (0.1, 0.4, 0.8):
        part = (chance >= low) & (chance < low + 0.2)
        assert float(wrong[part].double().mean()) == pytest.approx(float(chance[part].mean()), abs=0.08)


def test_a_temperature_that_was_lost_is_found() -> None:
    probs, truth = draw(4000, 10)
    labels, _ = flip(truth, 10, 0.2, neighbour=True)
    assert fit_noise_model(with_temperature(probs, 1 / 2.8), labels).temperature == pytest.approx(2.8)


def test_the_prior_is_weak_where_flips_have_a_pattern_and_strong_where_they_have_none() -> None:
    probs, truth = draw(3000, 10, spread=8.0)
    patterned, _ = flip(truth, 10, 0.3, neighbour=True)
    uniform, _ = flip(truth, 10, 0.05, neighbour=False)
    assert fit_noise_model(probs, patterned).strength == STRENGTHS[0]
    assert fit_noise_model(probs, uniform).strength >= STRENGTHS[2]


def test_a_small_class_is_nearer_to_the_average_than_a_large_one() -> None:
    probs, truth = draw(2000, 4, spread=8.0)
    rare = truth == 3
    kept = ~rare | (torch.arange(2000) < 60)
    labels, _ = flip(truth, 4, 0.3, neighbour=True)
    transition = fit_noise_model(probs[kept], labels[kept]).transition
    uneven = [row[np.arange(4) != i].max() / row[np.arange(4) != i].sum() for i, row in enumerate(transition)]
    assert uneven[3] < min(uneven[:3])


def test_a_thousand_classes_have_a_noise_model_too() -> None:
    probs = torch.rand((1000, 1000), dtype=torch.float64).softmax(dim=1)
    chance = probability_of_wrong(probs, torch.arange(1000), fit_noise_model(probs, torch.arange(1000)))
    assert torch.isfinite(chance).all()
    assert ((chance >= 0) & (chance <= 1)).all()


def test_probabilities_along_the_rank_never_rise_and_keep_their_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    values, order = torch.rand(500, generator=generator, dtype=torch.float64), torch.randperm(500, generator=generator)
    smooth = never_rising(values, order)
    assert (smooth[order].diff() <= 1e-12).all()
    assert float(smooth.sum()) == pytest.approx(float(values.sum()))
    assert torch.allclose(never_rising(smooth, order), smooth)


def scored(share: float = 0.2) -> tuple[Scores, Tensor, Tensor]:
    probs, truth = draw(3000, 6, spread=6.0)
    labels, wrong = flip(truth, 6, share, neighbour=False)
    other = geometric_mean(probs, draw(3000, 6, seed=5)[0], 0.1).float().numpy()
    prior = np.full(6, 1 / 6)
    return Scores(probs.numpy(), None, prior, 2.0, out_of_fold=True, ce_probs=other), labels, wrong


def test_the_rank_orders_by_suspicion_and_the_closed_form_decides() -> None:
    scores, labels, _ = scored()
    none = np.zeros(len(labels), dtype=np.bool_)
    verdicts = decide(scores, labels.numpy(), eps=1e-3, trusted=none)
    alone = decide(replace(scores, ce_probs=None), labels.numpy(), eps=1e-3, trusted=none)
    assert np.array_equal(verdicts.corrupted, alone.corrupted)  # cross-entropy heads only rank
    assert np.array_equal(verdicts.margin, alone.margin)
    assert not np.array_equal(verdicts.rank, alone.rank)
    assert verdicts.suspicion is not None
    order = np.argsort(verdicts.rank)
    assert (np.diff(verdicts.suspicion[order]) <= 0).all()
    assert (np.diff(verdicts.corruption_probability[order]) <= 1e-12).all()
    model = verdicts.rank_model
    assert model is not None
    probs = torch.from_numpy(scores.probs)
    sums = float(probability_of_wrong(probs, labels, model.noise_model).sum())
    assert verdicts.corruption_probability.sum() == pytest.approx(sums)


def test_suspicion_is_what_the_formula_says() -> None:
    scores, labels, _ = scored()
    assert scores.ce_probs is not None
    probs, other = torch.from_numpy(scores.probs), torch.from_numpy(scores.ce_probs)
    model = fit_rank_model(probs, other, labels)
    mean = geometric_mean(probs, other.double(), CE_WEIGHT)
    wrong, own = probability_of_wrong(mean, labels, model.combined), mean.gather(1, labels[:, None]).squeeze(1)
    wanted = torch.logit(wrong.clamp(1e-12, 1 - 1e-12)) + torch.logit((1 - own).clamp(1e-12, 1 - 1e-12))
    assert torch.allclose(suspicion(probs, other, labels, model), wanted)


def test_rows_that_are_scored_later_are_ranked_and_calibrated_as_in_the_scan() -> None:
    scores, labels, _ = scored()
    none = np.zeros(len(labels), dtype=np.bool_)
    first = decide(scores, labels.numpy(), eps=1e-3, trusted=none)
    assert first.suspicion is not None
    knots = fit_calibration(
        -torch.from_numpy(first.suspicion),
        torch.from_numpy(first.corruption_probability),
        torch.from_numpy(first.corrupted),
    )
    assert scores.ce_probs is not None
    part = replace(scores, probs=scores.probs[:50], ce_probs=scores.ce_probs[:50], rank_model=first.rank_model)
    again = decide(part, labels[:50].numpy(), eps=1e-3, trusted=none[:50])
    assert again.suspicion is not None
    assert np.allclose(again.suspicion, first.suspicion[:50])
    chance = apply_calibration(knots, -torch.from_numpy(again.suspicion)).numpy()
    assert np.abs(chance - first.corruption_probability[:50]).mean() < 0.05


@pytest.mark.parametrize("seed", range(12))
def test_the_floor_is_the_one_that_trying_all_would_choose(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes = int(rng.choice([2, 3, 10]))
    logits = rng.normal(size=(400, classes)) * rng.uniform(0.5, 6)
    labels = torch.from_numpy(np.where(rng.random(400) < 0.8, logits.argmax(axis=1), rng.integers(0, classes, 400)))
    probs = torch.from_numpy(logits).softmax(dim=1)
    floor, model = choose_floor(probs.float(), labels)
    share = float(probability_of_wrong(probs.float(), labels, model).mean())
    exact = in_float64(probs.float())
    gaps = [abs(float((margin(exact, labels, eps) >= 0).double().mean()) - share) for eps in FLOORS]
    assert floor == FLOORS[gaps.index(min(gaps))]


def test_probabilities_stored_in_float32_keep_what_is_left_to_the_other_classes() -> None:
    probs = torch.tensor([[1 - 3e-9, 2e-9, 1e-9]], dtype=torch.float64)
    exact = in_float64(probs.float())
    assert float(1 - exact[0, 0]) == pytest.approx(3e-9, rel=1e-6)
    assert torch.allclose(exact.sum(dim=1), torch.ones(1, dtype=torch.float64))
