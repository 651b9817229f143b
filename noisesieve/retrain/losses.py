"""The loss of consistency training, one value per row."""

from __future__ import annotations

import torch
from torch import Tensor


def consistency_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return KL(target || prediction), (B,), of the plain view's logits and the strongly augmented view's.

    The gradient flows through `logits` alone.
    """
    goal = torch.log_softmax(target.detach().float(), dim=1)
    log_probs = torch.log_softmax(logits.float(), dim=1)
    return (goal.exp() * (goal - log_probs)).sum(dim=1)
