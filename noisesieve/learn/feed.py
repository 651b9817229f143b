"""Pixels → uint8 batches on the training device, and how that device computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from noisesieve.learn.augment import normalize
from noisesieve.records import Pixels

STATISTICS_ROWS = 10_000
RESIDENT_SHARE = 0.25  # of the free GPU memory: a dataset below that is kept there whole


class Feed:
    """Batches of pictures (B, 3, S, S) on the device, plain uint8 or normalised."""

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
        if statistics is not None:  # of the data that a saved model was trained on
            self.mean, self.std = (torch.tensor(value, device=device) for value in statistics)
            return
        sample = np.linspace(0, len(pixels) - 1, min(len(pixels), STATISTICS_ROWS)).round().astype(np.int64)
        self.mean, self.std = (value.to(device) for value in self._statistics(torch.from_numpy(sample)))

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def size(self) -> int:
        """Pixels on a side."""
        return self._pixels.size

    def batches(self, order: Sequence[Tensor]) -> Iterator[Tensor]:
        """For each tensor of rows its pictures, uint8."""
        if self._resident is not None:
            for rows in order:
                yield self._resident[rows.to(self._device)]
        else:
            yield from self._read(order)

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 → float32 around zero, laid out as convolutions like it."""
        return normalize(images, self.mean, self.std).contiguous(memory_format=torch.channels_last)

    def _read(self, order: Sequence[Tensor]) -> Iterator[Tensor]:
        for batch in self._pixels.batches([rows.numpy() for rows in order]):
            images = torch.from_numpy(np.ascontiguousarray(batch)).permute(0, 3, 1, 2)
            if self._device.type == "cuda":
                yield images.pin_memory().to(self._device, non_blocking=True)
            else:
                yield images.to(self._device)

    def _statistics(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation a channel, over a fixed part of the rows."""
        count, total, squares = 0, torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        for images in self._read(rows.split(1024)):
            values = images.cpu().double()
            total += values.sum(dim=(0, 2, 3))
            squares += values.square().sum(dim=(0, 2, 3))
            count += values.numel() // 3
        mean = total / count
        deviation = (squares / count - mean.square()).clamp(min=1.0).sqrt()  # a flat dataset divides by one
        return mean.float(), deviation.float()


class Precision:
    """bfloat16 where the GPU has it, float16 with a scaler on older ones, float32 elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.dtype = torch.float32
        if device.type == "cuda":
            modern = torch.cuda.get_device_capability(device) >= (8, 0)
            self.dtype = torch.bfloat16 if modern else torch.float16
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """The region in which the body of the network may run in half precision; heads and losses leave it."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def make_deterministic(device: torch.device) -> None:
    """The same seed gives the same bits on one machine."""
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
