"""Plant known label errors: symmetric, asymmetric, or instance-dependent noise (the paper's Algorithm 1)."""

from __future__ import annotations

from noisesieve.noise.flips import asymmetric, instance, symmetric, truncated_mean, truncated_rates

__all__ = ["asymmetric", "instance", "symmetric", "truncated_mean", "truncated_rates"]
