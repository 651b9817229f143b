"""The confidence-regularized training loss, one value per row."""

from __future__ import annotations

import torch
from torch import Tensor

from noisesieve.sieve.formulas import PAPER_EPS, floored_log_loss, regularizer


def mixed_loss(logits: Tensor, labels: Tensor, partners: Tensor, share: float, prior: Tensor, beta: float) -> Tensor:
    """Return the loss of mixed images, (B,): the two labels' losses, weighted. CR does not depend on the label."""
    own = training_loss(logits, labels, prior, beta)
    return own if share == 1 else share * own + (1 - share) * training_loss(logits, partners, prior, beta)


def training_loss(logits: Tensor, labels: Tensor, prior: Tensor, beta: float, *, classes_first: bool = False) -> Tensor:
    """Return -ln f[y] + CR, (B,), from logits (B, K), or (K, B) with `classes_first`.

    Computed in float32 or wider, also under autocast. (K, B) is many times faster for large B and small K.

    The label term is exact; only CR has the floor. With a floor there too, a label with f[y] far below eps would get
    no gradient; without a floor CR would be unbounded below.
    """
    exact = logits.float() if logits.dtype != torch.float64 else logits
    log_probs = exact.log_softmax(dim=0).T if classes_first else exact.log_softmax(dim=1)  # (B, K)
    loss = -log_probs.gather(1, labels[:, None]).squeeze(1)
    if beta == 0:
        return loss
    return loss + regularizer(floored_log_loss(log_probs, PAPER_EPS), prior.to(log_probs), beta)
