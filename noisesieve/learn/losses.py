"""The confidence-regularized training loss, one value per row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from noisesieve.sieve.formulas import PAPER_EPS, entropy, floored_log_loss, regularizer

ENTROPY = "entropy"  # the regularizer of a recipe that is not CR
Loss = Callable[[Tensor, Tensor], Tensor]  # logits (B, K) and labels (B,) to losses (B,)


def mixed_loss(logits: Tensor, labels: Tensor, partners: Tensor, share: float, loss: Loss) -> Tensor:
    """Return the loss of mixed images, (B,): the two labels' losses, weighted. CR does not depend on the label."""
    own = loss(logits, labels)
    return own if share == 1 else share * own + (1 - share) * loss(logits, partners)


def entropy_loss(logits: Tensor, labels: Tensor, beta: float) -> Tensor:
    """Return -ln f[y] + beta * entropy, (B,): what CR is compared with in the ablation."""
    log_probs = logits.float().log_softmax(dim=1)
    return beta * entropy(log_probs) - log_probs.gather(1, labels[:, None]).squeeze(1)


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
