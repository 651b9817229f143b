"""Decoded images on their way into the pixel store."""

from __future__ import annotations

import numpy as np

from noisesieve.core.progress import Session
from noisesieve.core.row_store import CHUNK, WORTH_AN_INDEX, RowFile
from noisesieve.pixels.pixel_cache import warn_uncached
from noisesieve.pixels.task_queue import TaskResult


class PixelWriter:
    """Appends decoded images to a file, chunk by chunk. A full disk is said once, and nothing more is stored."""

    def __init__(self, file: RowFile, session: Session) -> None:
        self.file = file
        self._session = session
        self._waiting: dict[str, bytes] = {}
        self.stored = 0
        self.full = False

    def __enter__(self) -> PixelWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._append()  # also if the work was stopped: the next run goes on from there
        if self.stored >= WORTH_AN_INDEX:
            self.file.write_sorted_index()

    def add(self, result: TaskResult) -> None:
        """Store the pixels of a result, if it has any."""
        if result.data and result.sha256 is not None and not self.full:
            self._waiting[result.sha256] = result.data
            if len(self._waiting) == CHUNK:
                self._append()

    def _append(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if not waiting or self.full:
            return
        values = np.frombuffer(b"".join(waiting.values()), np.uint8).reshape(-1, *self.file.shape)
        try:
            self.file.append(list(waiting), values)
            self.stored += len(waiting)
        except OSError as error:
            self.full = True
            warn_uncached(self._session, self.file.file.parent.parent, error)
