"""Tasks of the decoding processes: what is to be done with an image, its result, and who does it next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from noisesieve.core.records import ImageLocation
from noisesieve.pixels.fetch import row_group

CHUNK = 32  # images per message to a worker: large enough to hide the latency, small enough to balance the load
EMBEDDED_CHUNK = 4096  # of one row group of a table: it is read by one worker, or by few if it is large


class ImageTask(NamedTuple):
    """One image to inspect or decode. `key` is chosen by the caller and returned with the result."""

    key: int
    location: ImageLocation
    blob: bytes = b""  # its content, if it was read already


class TaskResult(NamedTuple):
    """The result of a task. `transient`: the failure may not happen again (a worker died, memory ran out)."""

    key: int
    sha256: str | None
    status: str
    width: int
    height: int
    transient: bool = False
    data: bytes = b""  # pixels or a thumbnail


@dataclass(frozen=True)
class Pass:
    """What the workers do with every image in one pass over the files."""

    size: int = 0  # side of the pixels, or of thumbnails; 0: read headers only
    send: str | None = None  # file, pixels, thumbnail, or nothing
    training_size: int = 0  # of thumbnails: up to this side the training pixels are shown
    known: str | None = None  # file of the contents whose header is enough


class TaskQueue:
    """The tasks that no worker has taken yet, made one message at a time, and those that have no result yet."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passes: deque[tuple[Pass, Iterator[list[ImageTask]]]] = deque()
        self._again: deque[tuple[Pass, list[ImageTask]]] = deque()
        self._sent: dict[int, tuple[Pass, ImageTask]] = {}  # by key, until their first result
        self._closed = False

    def add(self, work: Pass, tasks: Iterable[ImageTask]) -> None:
        """Add the tasks of a pass."""
        with self._changed:
            self._passes.append((work, messages_of(tasks)))
            self._changed.notify_all()

    def close(self) -> None:
        """Let every waiting worker end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def next(self) -> tuple[Pass, list[ImageTask]] | None:
        """Wait for the next message of a worker; None at the end."""
        with self._changed:
            while not self._closed:
                if self._again:
                    return self._again.popleft()
                while self._passes:
                    work, messages = self._passes[0]
                    if (message := next(messages, None)) is not None:
                        self._sent.update((task.key, (work, task)) for task in message)
                        return work, message
                    self._passes.popleft()
                self._changed.wait()
        return None

    def try_again(self, result: TaskResult) -> bool:
        """Queue the task of a passing failure once more. Returns False for a result that is final."""
        with self._changed:
            sent = self._sent.pop(result.key, None)
            if sent is None or not result.transient:
                return False
            work, task = sent
            self._again.append((work, [task]))
            self._changed.notify()
            return True


def messages_of(tasks: Iterable[ImageTask]) -> Iterator[list[ImageTask]]:
    """Yield the tasks in lists; those of a table's row group together, so that one worker reads it."""
    message: list[ImageTask] = []
    group: tuple[str, int] | None = None
    for task in tasks:
        own = row_group(task.location)
        if message and (own != group or len(message) == (CHUNK if group is None else EMBEDDED_CHUNK)):
            yield message
            message = []
        message.append(task)
        group = own
    if message:
        yield message
