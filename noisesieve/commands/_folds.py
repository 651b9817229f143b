"""Which rows of a dataset stay in one fold: in a scan, and when its model is trained anew."""

from __future__ import annotations

import torch
from torch import Tensor

from noisesieve.commands._dataset import Dataset
from noisesieve.commands.scan_settings import NOTHING_TOGETHER, ScanSettings
from noisesieve.core.progress import Session
from noisesieve.learn.frozen.groups import join, near_identical
from noisesieve.learn.frozen.head_data import HeadData, Projected


def groups_of(
    dataset: Dataset, data: HeadData, projected: Projected, settings: ScanSettings, session: Session
) -> Tensor:
    """Return (N,) which rows stay in one fold: near-identical images, and those with the same --keep-together value."""
    wanted, groups = settings.keep_together, data.features.contents
    if wanted != NOTHING_TOGETHER and dataset.vectors is None:  # how alike vectors of any kind may be is not known
        groups = near_identical(projected.points, groups)
        alike = int((torch.bincount(groups)[groups] > 1).sum())
        if alike:
            session.note(f"{alike:,} images are near-identical to another one: they stay in one fold.")
    if dataset.groups is not None:
        values = torch.from_numpy(dataset.groups)
        order = values.argsort(stable=True)
        same = values[order][1:] == values[order][:-1]
        groups = join(groups, order[:-1][same], order[1:][same])
        session.note(f"--keep-together {wanted}: {int(groups.max()) + 1:,} groups of rows, each in one fold.")
    pairs = torch.stack((data.labels, groups), dim=1).unique(dim=0)
    counts = torch.bincount(pairs[:, 0], minlength=data.classes).tolist()
    few = [name for name, count in zip(dataset.classes, counts, strict=True) if count == 1]
    if few and dataset.groups is not None:
        named = ", ".join(f"'{name}'" for name in few[:5]) + (" …" if len(few) > 5 else "")
        session.warn(f"Classes with one group only, scored by heads that were trained on their rows: {named}.")
    return groups
