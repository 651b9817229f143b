"""The projection of features that heads are trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DIRECTIONS = 256  # number of directions kept, at least
FIT_ROWS = 2048  # number of rows that they are computed from, at most


@dataclass(frozen=True)
class Projection:
    """Centres features, divides them by one common deviation, and projects them onto their principal directions.

    One deviation for all features keeps the relative weight that the pretrained network gives them.
    """

    center: Tensor  # (D,)
    basis: Tensor  # (D, Q), divided by the deviation

    @classmethod
    def fit(cls, features: Tensor, *, classes: int, seed: int) -> Projection:
        """Compute the projection from up to `FIT_ROWS` evenly spaced rows."""
        part = features[:: -(-len(features) // FIT_ROWS)].float()
        center = part.mean(dim=0)
        part = part - center
        scale = float(part.square().mean().sqrt().clamp(min=1e-6))
        directions = max(DIRECTIONS, 4 * classes)
        if directions >= min(part.shape):
            return cls(center, torch.eye(part.shape[1]) / scale)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            _, _, basis = torch.svd_lowrank(part, q=directions, niter=1)
        return cls(center, basis / scale)

    def project(self, features: Tensor) -> Tensor:
        """(N, D) → (N, Q)."""
        return torch.cat([(part.float() - self.center) @ self.basis for part in features.split(4096)])

    def to_feature_layer(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return a linear layer on projected features, (K, Q) and (K,), as one on the features: (K, D) and (K,)."""
        on_features = weight @ self.basis.T
        return on_features.contiguous(), bias - on_features @ self.center
