"""The confidence-regularized training loss, one value a row."""

from __future__ import annotations

import torch
from torch import Tensor

from noisesieve.sieve.formulas import PAPER_EPS, floored_log_loss, regularizer


def mixed_loss(logits: Tensor, labels: Tensor, partners: Tensor, share: float, prior: Tensor, beta: float) -> Tensor:
    """The loss of mixed pictures, (B,): each label's by its share, so that CR, which asks no label, counts once."""
    own = training_loss(logits, labels, prior, beta)
    return own if share == 1 else share * own + (1 - share) * training_loss(logits, partners, prior, beta)


def training_loss(logits: Tensor, labels: Tensor, prior: Tensor, beta: float, *, classes_first: bool = False) -> Tensor:
    """-ln f[y] + CR, (B,), from logits (B, K), or (K, B): many times faster where B is large and K small.

    In float32 or wider, whatever autocast made of the logits.

    The label term is exact and only CR has the floor: floored too, a label with f[y] far below eps would
    get no gradient; unfloored, CR would be unbounded below.
    """
    exact = logits.float() if logits.dtype != torch.float64 else logits
    log_probs = exact.log_softmax(dim=0).T if classes_first else exact.log_softmax(dim=1)  # (B, K)
    loss = -log_probs.gather(1, labels[:, None]).squeeze(1)
    if beta == 0:
        return loss
    return loss + regularizer(floored_log_loss(log_probs, PAPER_EPS), prior.to(log_probs), beta)
