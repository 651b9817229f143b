"""What consistency training minimises, one value a row."""

from __future__ import annotations

import torch
from torch import Tensor


def disagreement(logits: Tensor, target: Tensor) -> Tensor:
    """KL(target || prediction), (B,): how far the strongly augmented view is from what the plain one shows.

    The gradient flows through `logits` alone.
    """
    goal = torch.log_softmax(target.detach().float(), dim=1)
    said = torch.log_softmax(logits.float(), dim=1)
    return (goal.exp() * (goal - said)).sum(dim=1)
