"""Pixels → batches of images on the training device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from noisesieve.core.records import Pixels
from noisesieve.learn.augment import normalize

STATISTICS_ROWS = 10_000
RESIDENT_SHARE = 0.25  # a dataset that needs less than this share of the free GPU memory is copied there whole


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
            self.mean, self.std = (torch.tensor(value, device=device) for value in statistics)
            return
        sample = np.linspace(0, len(pixels) - 1, min(len(pixels), STATISTICS_ROWS)).round().astype(np.int64)
        self.mean, self.std = (value.to(device) for value in self._statistics(torch.from_numpy(sample)))

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
