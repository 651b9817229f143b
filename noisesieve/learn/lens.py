"""How heads see features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DIRECTIONS = 256  # that are kept, at least
LENS_ROWS = 2048  # that they are measured on, at most


@dataclass(frozen=True)
class Lens:
    """How heads see features: centred, divided by one deviation for all (what a pretrained network stresses stays
    stressed), and turned onto their strongest directions, which is where nearly all of them lies."""

    center: Tensor  # (D,)
    basis: Tensor  # (D, Q), the deviation divided out

    @classmethod
    def of(cls, features: Tensor, *, classes: int, seed: int) -> Lens:
        """Measured on up to `LENS_ROWS` rows, evenly drawn."""
        part = features[:: -(-len(features) // LENS_ROWS)].float()
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

    def through(self, features: Tensor) -> Tensor:
        """(N, D) → (N, Q)."""
        return torch.cat([(part.float() - self.center) @ self.basis for part in features.split(4096)])

    def unfold(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """A layer on what the lens shows, (K, Q) and (K,), as one on the features: (K, D) and (K,)."""
        whole = weight @ self.basis.T
        return whole.contiguous(), bias - whole @ self.center
