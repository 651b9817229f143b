"""Three kinds of label noise. Each function returns new labels (N,); row i stays row i."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BLOCK = 4096  # rows
RATE_SD = 0.1  # Algorithm 1: flip rates are normal around the rate, truncated to [0, 1]


def symmetric(labels: Labels, classes: int, *, rate: float, rng: np.random.Generator) -> Labels:
    """Flip with probability `rate`, to any other class with the same probability."""
    flips = rng.random(len(labels)) < rate
    shift = rng.integers(1, classes, size=len(labels))
    return np.where(flips, (labels + shift) % classes, labels)


def asymmetric(labels: Labels, classes: int, *, rate: float, rng: np.random.Generator) -> Labels:
    """Flip class i to i + 1 (the last to the first) with probability `rate`."""
    flips = rng.random(len(labels)) < rate
    return np.where(flips, (labels + 1) % classes, labels)


def truncated_rates(n: int, *, rate: float, rng: np.random.Generator) -> Floats:
    """Return n flip rates from N(rate, 0.1²), truncated to [0, 1]. Near the ends their mean is not `rate`."""
    rates = rng.normal(rate, RATE_SD, size=n)
    while (outside := (rates < 0) | (rates > 1)).any():
        rates[outside] = rng.normal(rate, RATE_SD, size=int(outside.sum()))
    return rates


def truncated_mean(rate: float) -> float:
    """Return the mean of N(rate, 0.1²) truncated to [0, 1]: the expected share of flips."""
    low, high = (0 - rate) / RATE_SD, (1 - rate) / RATE_SD

    def density(z: float) -> float:
        return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    def mass(z: float) -> float:
        return (1 + math.erf(z / math.sqrt(2))) / 2

    return rate + RATE_SD * (density(low) - density(high)) / (mass(high) - mass(low))


def instance(
    images: npt.NDArray[np.uint8],
    labels: Labels,
    classes: int,
    *,
    rate: float,
    rng: np.random.Generator,
    raw: bool = False,
) -> Labels:
    """The paper's Algorithm 1: the new class of a row depends on its pixels (N, H, W, C), through a random matrix W.

    Pixels are scaled over the dataset to zero mean and unit variance, unless `raw`: on raw bytes, as the authors' code
    uses them, the softmax saturates, so that each image has one certain target, and most flips go to one class.
    """
    rates = truncated_rates(len(labels), rate=rate, rng=rng)  # step 2
    pixels = images.reshape(len(images), -1)
    blocks = [pixels[start : start + BLOCK] for start in range(0, len(pixels), BLOCK)]
    mean, spread = (0.0, 1.0) if raw else _moments(blocks, pixels.size)
    weights = rng.standard_normal((pixels.shape[1], classes))  # step 3: one W of S x K
    rows = np.arange(len(labels))
    scores = np.concatenate([(block - mean) / spread @ weights for block in blocks])  # step 4, (N, K)
    scores[rows, labels] = -np.inf  # step 5: only other classes
    probs = np.exp(scores - scores.max(axis=1, keepdims=True))
    probs *= (rates / probs.sum(axis=1))[:, None]  # step 6: q_n * softmax
    probs[rows, labels] = 1 - rates  # step 7
    draws = rng.random(len(labels))[:, None]
    drawn: Labels = (np.cumsum(probs, axis=1) < draws).sum(axis=1, dtype=np.int64)  # step 8
    return drawn.clip(max=classes - 1)


def _moments(blocks: list[npt.NDArray[np.uint8]], count: int) -> tuple[float, float]:
    """Return mean and deviation of all pixels; blocks, since float64 takes 8 times the memory of bytes."""
    mean = sum(int(block.sum(dtype=np.int64)) for block in blocks) / count
    spread = math.sqrt(sum(float(np.square(block - mean).sum()) for block in blocks) / count)
    return mean, spread or 1.0
