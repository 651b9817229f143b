"""What the last layer sees of every row: the network's own idea of which pictures are alike."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisesieve.learn.feed import Feed

BLOCK = 128  # pictures at a time: a ResNet-50 at 224 px takes gigabytes for a thousand


def embed(model: nn.Module, feed: Feed, rows: int, *, flip: bool) -> Tensor:
    """Features (N, D), both views averaged where flips are allowed."""
    seen: list[Tensor] = []
    last = next(module for module in reversed(list(model.modules())) if isinstance(module, nn.Linear))
    hook = last.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach().float().cpu()))
    found = []
    model.eval()
    try:
        with torch.inference_mode():
            for images in feed.batches(list(torch.arange(rows).split(BLOCK))):
                seen.clear()
                plain = feed.normalize(images)
                for view in (plain, plain.flip(3)) if flip else (plain,):
                    model(view)
                found.append(torch.stack(seen).mean(dim=0))
    finally:
        hook.remove()
    return torch.cat(found).clone()
