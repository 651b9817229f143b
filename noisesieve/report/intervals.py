"""95 % intervals: of a counted share, and of an estimated noise rate."""

from __future__ import annotations

import math

Z95 = 1.959963984540054  # standard deviations in a 95 % interval
ENOUGH = 2000  # rows from which the estimator's own error does not shrink any more
OVERRATED, OVERRATED_LEAST, OVERRATED_UPTO = 0.12, 0.01, 0.2  # how far an estimate may be too high
UNDERRATED, UNDERRATED_LEAST, UNDERRATED_UPTO = 0.42, 0.012, 0.12  # and too low


def wilson_interval(hits: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share, which is valid for few rows and for shares near 0 and 1."""
    if total == 0:
        return 0.0, 1.0
    share, square = hits / total, Z95 * Z95
    middle = (share + square / (2 * total)) / (1 + square / total)
    reach = Z95 / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return max(0.0, min(share, middle - reach)), min(1.0, max(share, middle + reach))  # contains share despite rounding


def noise_rate_interval(estimate: float, rows: int) -> tuple[float, float]:
    """Return the 95 % interval of an estimated noise rate.

    It has two parts: the spread of a sample of this size, and the estimator's own error, whose law was found on sets
    with known labels (noisesieve/bench/README.md). Mistakes that people share are underrated, in proportion to their
    number; right labels of hard images are overrated, by a few rows in a hundred. With few rows both are larger.
    """
    few = max(1.0, math.sqrt(ENOUGH / max(1, rows)))
    sample = Z95 * math.sqrt(estimate * (1 - estimate) / max(1, rows))
    below = math.hypot((OVERRATED_LEAST + OVERRATED * min(estimate, OVERRATED_UPTO)) * few, sample)
    above = math.hypot((UNDERRATED_LEAST + UNDERRATED * min(estimate, UNDERRATED_UPTO)) * few, sample)
    return max(0.0, estimate - below), min(1.0, estimate + above)
