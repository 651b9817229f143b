"""Plant known flips, so that a verdict can be measured: symmetric, asymmetric, instance (the paper's Algorithm 1)."""

from __future__ import annotations

from noisesieve.noise.flips import asymmetric, instance, symmetric, truncated_mean, truncated_rates

__all__ = ["asymmetric", "instance", "symmetric", "truncated_mean", "truncated_rates"]
