"""Folds: which head is not trained on a row, and therefore scores it."""

from __future__ import annotations

import torch
from torch import Tensor

from noisesieve.learn.training_data import make_generator


def assign_folds(labels: Tensor, groups: Tensor, *, folds: int, partitions: int, seed: int) -> Tensor:
    """Return (N, partitions): for each partition the number of the head that holds the row out, stratified by class.

    Rows of one group are held out together: a head trained on a copy would have memorized its label.
    """
    _, group = groups.unique(return_inverse=True)  # (N,) numbers without gaps
    count = int(group.max()) + 1
    label = torch.zeros(count, dtype=labels.dtype).scatter_(0, group, labels)  # of any of its rows
    heads = []
    for number in range(partitions):
        shuffled = torch.randperm(count, generator=make_generator(seed, number, folds))
        order = shuffled[label[shuffled].argsort(stable=True)]
        fold = torch.empty_like(order)
        fold[order] = torch.arange(count) % folds + number * folds
        heads.append(fold[group])
    return torch.stack(heads, dim=1)


def in_single_group_class(labels: Tensor, groups: Tensor) -> Tensor:
    """Return (N,): True for rows of classes that have only one group: without it no head would know the class."""
    pairs = torch.stack((labels, groups), dim=1).unique(dim=0)
    return torch.bincount(pairs[:, 0], minlength=int(labels.max()) + 1)[labels] < 2
