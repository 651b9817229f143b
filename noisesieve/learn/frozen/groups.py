"""Rows that belong together stay in one fold: else a neighbour with the same wrong label would vouch for the other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

# Cosine of projected features, averaged over both views, from which two images are near-identical. If a group would
# have more than LARGEST of all rows, they look alike for another reason, and the next is taken; at last equal bytes.
ALIKE = (0.9, 0.93, 0.96, 0.98)
LARGEST = 0.05
MOST_ROWS = 200_000  # with more rows only equal bytes are looked for: the comparison is quadratic
MOST_PAIRS = 3 * 10**6
BLOCK, OTHERS = 2048, 8192  # rows that are compared with others at a time


def near_identical(points: Tensor, contents: Tensor) -> Tensor:
    """Return (N,) the number of each row's group of near-identical images, from projected features (N, V, Q).

    Rows with equal `contents` (N,) are always in one group.
    """
    if len(points) > MOST_ROWS:
        return contents
    unit = normalize(points.float().mean(dim=1), dim=1)
    left, right, similarity, sparse = _similar_pairs(unit)
    for least in ALIKE[sparse:]:
        close = similarity >= least
        groups = join(contents, left[close], right[close])
        if int(torch.bincount(groups).max()) <= max(2, LARGEST * len(points)):
            return groups
    return contents


def join(groups: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return groups (N,) in which each row of `left` is also together with that of `right`."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    _, first = groups.unique(return_inverse=True)
    rows = len(groups)
    # A row is linked to the node of its group; nodes of groups come after those of rows.
    begin = torch.cat((torch.arange(rows), left)).numpy()
    end = torch.cat((first + rows, right)).numpy()
    size = rows + int(first.max()) + 1
    links = coo_array((torch.ones(len(begin)).numpy(), (begin, end)), shape=(size, size))
    _, joined = connected_components(links, directed=False)
    numbers: Tensor = torch.from_numpy(joined[:rows]).long().unique(return_inverse=True)[1]
    return numbers


def _similar_pairs(unit: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return pairs of rows (left < right) that are alike, their cosine, and which of ALIKE they have at least.

    That is the first, or a later one if there were more than MOST_PAIRS: then most rows look alike for another reason.
    """
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    level = found = 0
    for start in range(0, len(unit), BLOCK):
        for other in range(start, len(unit), OTHERS):
            similarity = unit[start : start + BLOCK] @ unit[other : other + OTHERS].T
            left, right = (similarity >= ALIKE[level]).nonzero(as_tuple=True)
            later = right + other > left + start
            left, right = left[later], right[later]
            if len(left):
                parts.append((left + start, right + other, similarity[left, right]))
                found += len(left)
            while found > MOST_PAIRS and level + 1 < len(ALIKE):
                level += 1
                closer = [cosine >= ALIKE[level] for _, _, cosine in parts]
                parts = [(a[kept], b[kept], c[kept]) for (a, b, c), kept in zip(parts, closer, strict=True)]
                found = sum(len(left) for left, _, _ in parts)
            if found > MOST_PAIRS:  # nearly all rows are near-identical: only equal bytes count
                parts, found = [], 0
                level = len(ALIKE)
                break
        if level == len(ALIKE):
            break
    if not parts:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0), level
    left, right, cosine = (torch.cat(column) for column in zip(*parts, strict=True))
    return left, right, cosine, level
