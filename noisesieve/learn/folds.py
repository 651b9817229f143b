"""Who judges whom: every row is left out by one head of each partition."""

from __future__ import annotations

import torch
from torch import Tensor

from noisesieve.learn.lesson import generator


def owners(labels: Tensor, contents: Tensor, *, folds: int, seeds: int, seed: int) -> Tensor:
    """(N, seeds): of each partition the head that leaves the row out. Classes are spread evenly over the folds.

    The same picture in several rows is left out as one: a head that learnt a copy would know its label by heart.
    """
    _, place = contents.unique(return_inverse=True)  # (N,) numbers without gaps
    count = int(place.max()) + 1
    label = torch.zeros(count, dtype=labels.dtype).scatter_(0, place, labels)  # of any of its rows
    found = []
    for number in range(seeds):
        shuffled = torch.randperm(count, generator=generator(seed, number, folds))
        order = shuffled[label[shuffled].argsort(stable=True)]
        fold = torch.empty_like(order)
        fold[order] = torch.arange(count) % folds + number * folds
        found.append(fold[place])
    return torch.stack(found, dim=1)


def single(labels: Tensor, contents: Tensor) -> Tensor:
    """(N,) bool: rows of classes that have only one picture."""
    pairs = torch.stack((labels, contents), dim=1).unique(dim=0)
    return torch.bincount(pairs[:, 0], minlength=int(labels.max()) + 1)[labels] < 2
