"""Which rows stay in one fold."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from noisesieve.learn.frozen import groups
from noisesieve.learn.frozen.groups import join, near_identical


def points(rows: int = 200, width: int = 32) -> Tensor:
    return torch.randn((rows, 1, width), generator=torch.Generator().manual_seed(0))


def test_copies_and_near_copies_are_one_group_and_others_are_alone() -> None:
    images = points()
    images[1] = images[0] + 0.05
    images[2] = images[1] + 0.05
    contents = torch.arange(200)
    contents[11] = contents[10]
    found = near_identical(images, contents)
    sizes = torch.bincount(found)[found]
    assert len(found[:3].unique()) == 1
    assert found[10] == found[11]
    assert (sizes > 1).nonzero().flatten().tolist() == [0, 1, 2, 10, 11]


def test_images_that_all_look_alike_are_told_apart_more_finely() -> None:
    images = points()
    images[:100] = images[0] + 0.27 * torch.randn(
        (100, 1, 32), generator=torch.Generator().manual_seed(1)
    )  # half of the dataset: a plain background, not copies
    images[1] = images[0]
    found = near_identical(images, torch.arange(200))
    assert int(torch.bincount(found).max()) <= 0.05 * 200
    assert found[0] == found[1]


def test_too_many_rows_are_only_compared_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOST_ROWS", 100)
    contents = torch.arange(200)
    assert near_identical(torch.ones((200, 1, 4)), contents) is contents


def test_pairs_join_groups_and_chains_of_them() -> None:
    joined = join(torch.tensor([5, 5, 7, 8, 9]), torch.tensor([1, 2]), torch.tensor([2, 3]))
    assert joined.tolist() == [0, 0, 0, 0, 1]
    none = torch.zeros(0, dtype=torch.long)
    assert join(torch.tensor([3, 1, 3]), none, none).unique().numel() == 2


def test_where_most_rows_look_alike_only_closer_ones_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.ones(300, 16) + 0.4 * torch.randn((300, 16), generator=generator)  # many within .9 of each other
    points[1] = points[0]
    for most in (10**6, 10):
        monkeypatch.setattr(groups, "MOST_PAIRS", most)
        found = near_identical(points[:, None], torch.arange(300))
        assert found[0] == found[1]
        assert len(found.unique()) < 300
    monkeypatch.setattr(groups, "MOST_PAIRS", 0)
    assert len(near_identical(points[:, None], torch.arange(300)).unique()) == 300  # equal bytes alone
