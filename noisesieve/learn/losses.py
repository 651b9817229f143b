"""The confidence-regularized training loss, one value a row."""

from __future__ import annotations

import torch
from torch import Tensor

from noisesieve.sieve.formulas import PAPER_EPS, floored_log_loss, regularizer


def training_loss(logits: Tensor, labels: Tensor, prior: Tensor, beta: float) -> Tensor:
    """-ln f[y] + CR, (B,). In float32 or wider, whatever autocast made of the logits.

    The label term is exact and only CR has the floor: floored too, a label with f[y] far below eps would
    get no gradient; unfloored, CR would be unbounded below.
    """
    log_probs = torch.log_softmax(logits.float() if logits.dtype != torch.float64 else logits, dim=1)
    loss = -log_probs.gather(1, labels[:, None]).squeeze(1)
    if beta == 0:
        return loss
    return loss + regularizer(floored_log_loss(log_probs, PAPER_EPS), prior.to(log_probs), beta)
