"""The projection of features that heads are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from noisesieve.learn.frozen.features import Features

DIRECTIONS = 256  # number of directions kept, at least
MOST_DIRECTIONS = 320  # with many classes
FIT_ROWS = 2048  # number of rows that they are computed from, at most
BLOCK = 4096  # rows that are projected at a time


def projected_width(width: int, *, classes: int) -> int:
    """Return how many numbers per row and view are left of features of this width, if there are enough rows."""
    return min(width, max(DIRECTIONS, 4 * classes), MOST_DIRECTIONS)


@dataclass(frozen=True)
class Projection:
    """Centres the features of some depths, gives every depth the same energy, and keeps their principal directions.

    One deviation for all features of a depth keeps the relative weight that the pretrained network gives them. The mean
    square over all features is one.
    """

    depths: tuple[str, ...]
    center: Tensor  # (D,)
    basis: Tensor  # (D, Q), divided by the deviations

    @classmethod
    def fit(cls, features: Features, depths: Sequence[str], *, classes: int, seed: int) -> Projection:
        """Compute the projection from the plain view of up to `FIT_ROWS` evenly spaced rows."""
        rows = np.arange(0, len(features), -(-len(features) // FIT_ROWS))
        parts = [features.read(depth, rows, view=0) for depth in depths]
        center = torch.cat([part.mean(dim=0) for part in parts])
        width, scales = len(center), []
        for part in parts:
            part -= part.mean(dim=0)
            energy = part.square().sum(dim=1).mean() * len(parts) / width  # one when all depths together have `width`
            scales.append(energy.sqrt().clamp(min=1e-6).expand(part.shape[1]))
        scale = torch.cat(scales)
        points = torch.cat(parts, dim=1) / scale
        directions = min(max(DIRECTIONS, 4 * classes), MOST_DIRECTIONS)
        if directions >= min(points.shape):
            return cls(tuple(depths), center, torch.diag(1 / scale))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            _, _, basis = torch.svd_lowrank(points, q=directions, niter=1)
        return cls(tuple(depths), center, basis / scale[:, None])

    def project(self, features: Features, *, views: int) -> Tensor:
        """Return the projected features of all rows and of the first `views` views, (N, V, Q)."""
        projected = torch.empty((len(features), views, self.basis.shape[1]))
        for begin in range(0, len(features), BLOCK):
            rows = slice(begin, begin + BLOCK)
            points = torch.cat([features.read(depth, rows)[:, :views] for depth in self.depths], dim=2)
            projected[rows] = (points - self.center) @ self.basis
        return projected

    def to_feature_layer(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return a linear layer on projected features, (K, Q) and (K,), as one on the features: (K, D) and (K,)."""
        on_features = weight @ self.basis.T
        return on_features.contiguous(), bias - on_features @ self.center
