"""Pixels → batches of images on the training device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from noisesieve.core.records import Pixels
from noisesieve.learn.augment import normalize
from noisesieve.learn.distributed import Processes

STATISTICS_ROWS = 10_000
RESIDENT_SHARE = 0.25  # a dataset that needs less than this share of the free GPU memory is copied there whole
AHEAD = 3  # steps that are read and pinned ahead
Columns = dict[str, Tensor]  # numbers of the rows of a step, by name: (B,) each


class StepPlan(NamedTuple):
    """What a training step computes, known before it starts: nothing in it comes from the device."""

    used: Tensor  # (A,) rows over all ranks
    mine: Tensor  # (B,) rows of this rank
    kept: int  # kept rows over all ranks
    names: tuple[str, ...]
    numbers: Tensor  # (names, B) float64, exact for row numbers: one copy to the device
    share: float = 1.0  # of the image itself, with mixup
    policies: tuple[tuple[int, int], ...] = ()  # seed of a random policy, and how many of the images it is for

    @classmethod
    def of(
        cls,
        used: Tensor,
        processes: Processes,
        columns: Columns,
        *,
        kept: int,
        local: Columns | None = None,
        share: float = 1.0,
        policies: tuple[tuple[int, int], ...] = (),
    ) -> StepPlan:
        """Plan a step. `columns` have numbers of all rows `used`, a `weight` among them; `local` of this rank's."""
        own = processes.places(len(used))
        mine = used[own]
        taken = {"row": mine, **{name: values[own] for name, values in columns.items()}, **(local or {})}
        if processes.rank >= len(used):  # takes part with a row of weight zero
            taken["weight"] = torch.zeros(len(mine))
        numbers = torch.stack([values.double() for values in taken.values()])
        return cls(used, mine, kept, tuple(taken), numbers, share, policies)


class BatchLoader:
    """Yields batches of images (B, 3, S, S) on the device, as uint8, and normalizes them."""

    def __init__(
        self, pixels: Pixels, device: torch.device, *, statistics: tuple[list[float], list[float]] | None = None
    ) -> None:
        self._pixels = pixels
        self._device = device
        self._resident: Tensor | None = None
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if len(pixels) * pixels.size**2 * 3 < free * RESIDENT_SHARE:
                self._resident = torch.cat(list(self._read(torch.arange(len(pixels)).split(4096))))
        if statistics is not None:  # those that a saved or pretrained model was trained with
            mean, std = (torch.tensor(value) for value in statistics)
        else:
            sample = np.linspace(0, len(pixels) - 1, min(len(pixels), STATISTICS_ROWS)).round().astype(np.int64)
            mean, std = self._statistics(torch.from_numpy(sample))
        self.statistics: tuple[list[float], list[float]] = mean.tolist(), std.tolist()
        self.mean, self.std = mean.to(device), std.to(device)

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def size(self) -> int:
        """Side of the images in pixels."""
        return self._pixels.size

    def batches(self, order: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the uint8 images of each tensor of rows."""
        if self._resident is not None:
            for rows in order:
                yield self._resident[rows.to(self._device)]
        else:
            yield from self._read(order)

    def steps(self, plans: Iterable[StepPlan]) -> Iterator[tuple[StepPlan, Tensor, Columns]]:
        """Yield each step of a training with its images and its numbers on the device.

        On a GPU a thread plans, reads and pins the steps ahead, and two copies per step go to the device, or one where
        all images are there. It is a thread, not a process: pixels in a memory map take a fraction of a millisecond,
        and twenty times that through a process.
        """
        if self._device.type != "cuda":
            for plan in plans:
                yield plan, self._to_device(self._read_now(plan)), self._columns(plan, plan.numbers)
            return
        source = iter(plans)

        def prepare() -> tuple[StepPlan, Tensor, Tensor] | None:
            if (plan := next(source, None)) is None:
                return None
            images = torch.zeros(0) if self._resident is not None else self._read_now(plan)
            return plan, images.pin_memory(), plan.numbers.pin_memory()

        with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
            waiting = [thread.submit(prepare) for _ in range(AHEAD)]
            while (ready := waiting.pop(0).result()) is not None:
                waiting.append(thread.submit(prepare))
                plan, images, pinned = ready
                columns = self._columns(plan, pinned)
                if self._resident is not None:
                    yield plan, self._resident[columns["row"].long()], columns
                else:
                    yield plan, self._to_device(images), columns

    def _columns(self, plan: StepPlan, numbers: Tensor) -> Columns:
        if self._device.type == "mps":  # Metal has no float64
            numbers = numbers.float()
        return dict(zip(plan.names, numbers.to(self._device, non_blocking=True), strict=True))

    def _read_now(self, plan: StepPlan) -> Tensor:
        """Return the images of a step on the CPU, (B, 3, S, S); none for a step without rows."""
        if not len(plan.mine):
            return torch.zeros((0, 3, self.size, self.size), dtype=torch.uint8)
        (batch,) = self._pixels.batches([plan.mine.numpy()])
        return torch.from_numpy(np.ascontiguousarray(batch)).permute(0, 3, 1, 2)

    def _to_device(self, images: Tensor) -> Tensor:
        return images.to(self._device, non_blocking=True)

    def normalize(self, images: Tensor) -> Tensor:
        """Return uint8 images as normalized float32 in channels-last layout, which is faster for convolutions."""
        return normalize(images, self.mean, self.std).contiguous(memory_format=torch.channels_last)

    def _read(self, order: Sequence[Tensor]) -> Iterator[Tensor]:
        for batch in self._pixels.batches([rows.numpy() for rows in order]):
            images = torch.from_numpy(np.ascontiguousarray(batch)).permute(0, 3, 1, 2)
            if self._device.type == "cuda":
                yield images.pin_memory().to(self._device, non_blocking=True)
            else:
                yield images.to(self._device)

    def _statistics(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation per channel, over a fixed sample of rows."""
        count, total, squares = 0, torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        for images in self._read(rows.split(1024)):
            values = images.cpu().double()
            total += values.sum(dim=(0, 2, 3))
            squares += values.square().sum(dim=(0, 2, 3))
            count += values.numel() // 3
        mean = total / count
        deviation = (squares / count - mean.square()).clamp(min=1.0).sqrt()  # at least 1, for constant images
        return mean.float(), deviation.float()
