"""Planted noise has the rate and the shape it claims."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chisquare

from noisesieve.noise.flips import asymmetric, instance, symmetric, truncated_mean, truncated_rates

N, K = 20_000, 10
LABELS = np.random.default_rng(9).integers(0, K, N)


def bound(rate: float, n: int = N) -> float:
    return 4 * math.sqrt(rate * (1 - rate) / n)


def test_symmetric_flips_go_to_every_other_class_alike() -> None:
    noisy = symmetric(LABELS, K, rate=0.4, rng=np.random.default_rng(0))
    flips = noisy != LABELS
    assert abs(flips.mean() - 0.4) <= bound(0.4)
    assert chisquare(np.bincount((noisy - LABELS)[flips] % K, minlength=K)[1:]).pvalue > 1e-3


def test_asymmetric_flips_go_to_the_next_class_only() -> None:
    noisy = asymmetric(LABELS, K, rate=0.3, rng=np.random.default_rng(0))
    flips = noisy != LABELS
    assert abs(flips.mean() - 0.3) <= bound(0.3)
    assert (noisy[flips] == (LABELS[flips] + 1) % K).all()


@pytest.mark.parametrize(("rate", "mean"), [(0.2, 0.2055), (0.1, 0.1288)])
def test_the_truncated_mean_is_not_the_rate(rate: float, mean: float) -> None:
    assert truncated_mean(rate) == pytest.approx(mean, abs=5e-5)
    rates = truncated_rates(N, rate=rate, rng=np.random.default_rng(0))
    assert rates.min() >= 0
    assert rates.max() <= 1
    assert rates.mean() == pytest.approx(mean, abs=4 * 0.1 / math.sqrt(N))


def test_instance_flips_follow_the_truncated_mean_and_depend_on_the_image() -> None:
    images = np.random.default_rng(1).integers(0, 256, (5000, 4, 4, 3)).astype(np.uint8)
    labels = LABELS[:5000]
    noisy = instance(images, labels, K, rate=0.2, rng=np.random.default_rng(0))
    expected = truncated_mean(0.2)
    assert abs((noisy != labels).mean() - expected) <= bound(expected, 5000)
    alike = np.repeat(images[:1], 5000, axis=0)
    same = instance(alike, np.zeros_like(labels), K, rate=0.9, rng=np.random.default_rng(0))
    targets = np.bincount(same[same != 0], minlength=K)
    assert targets.max() > 2 * targets[1:].mean()  # one image, one preference: not every class alike


@pytest.mark.parametrize("plant", [symmetric, asymmetric])
def test_the_same_seed_plants_the_same_flips(plant: object) -> None:
    first = plant(LABELS, K, rate=0.3, rng=np.random.default_rng(5))  # type: ignore[operator]
    again = plant(LABELS, K, rate=0.3, rng=np.random.default_rng(5))  # type: ignore[operator]
    assert (first == again).all()
