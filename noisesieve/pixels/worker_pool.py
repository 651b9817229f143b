"""A pool of decoding processes. One that dies or hangs is replaced; its image gets a status, and the rest continues."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from noisesieve.core.errors import NoisesieveError
from noisesieve.core.records import ImageLocation

CHUNK = 32  # images per message to a worker: large enough to hide the latency, small enough to balance the load


class ImageTask(NamedTuple):
    """One image to inspect or decode. `key` is chosen by the caller and returned with the result."""

    key: int
    slot: int
    location: ImageLocation


class TaskResult(NamedTuple):
    """The result of a task. `transient`: the failure may not happen again (a worker died, memory ran out)."""

    key: int
    sha256: str | None
    status: str
    width: int
    height: int
    transient: bool = False


@dataclass(frozen=True)
class WorkerOptions:
    """What the workers do with every image."""

    size: int  # side of the pixels; 0: read headers only
    max_pixels: int
    seconds: float  # after which a worker counts as hanging
    store: Path | None = None  # file that receives the pixels
    slots: int = 0  # of the store
    thumbnails: bool = False  # the store is a folder, and the slot of each task is the name of its file there

    def to_json(self) -> str:
        """Return what a worker process needs."""
        names = ("size", "max_pixels", "slots", "thumbnails")
        store = os.fspath(self.store) if self.store else None
        return json.dumps({**{name: getattr(self, name) for name in names}, "store": store})


class WorkerPool:
    """Processes that run tasks in any order."""

    def __init__(self, count: int, options: WorkerOptions, *, pause: Callable[[], None] = lambda: None) -> None:
        config, seconds = options.to_json(), options.seconds
        self._pause = pause  # called while waiting; may raise to stop
        self._tasks: queue.SimpleQueue[list[ImageTask] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[TaskResult | BaseException] = queue.SimpleQueue()
        self._workers = [_WorkerThread(config, self._tasks, self._results, seconds) for _ in range(count)]

    def __enter__(self) -> WorkerPool:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in self._workers:
            self._tasks.put(None)
        for worker in self._workers:
            worker.stop()

    def submit(self, tasks: Sequence[ImageTask]) -> None:
        """Queue tasks; each gives one result."""
        for start in range(0, len(tasks), CHUNK):
            self._tasks.put(list(tasks[start : start + CHUNK]))

    def result(self) -> TaskResult:
        """Wait for the next result, in any order."""
        while True:
            try:
                result = self._results.get(timeout=0.5)
            except queue.Empty:
                self._pause()
                for worker in self._workers:
                    worker.kill_if_slow()
                continue
            if isinstance(result, BaseException):
                raise result
            return result

    def run(self, tasks: Sequence[ImageTask]) -> Iterator[TaskResult]:
        """Run all tasks and yield their results."""
        self.submit(tasks)
        for _ in range(len(tasks)):
            yield self.result()


class _WorkerThread(threading.Thread):
    """Drives one process: sends it tasks, reads its results, replaces it when it dies."""

    def __init__(
        self,
        config: str,
        tasks: queue.SimpleQueue[list[ImageTask] | None],
        results: queue.SimpleQueue[TaskResult | BaseException],
        seconds: float,
    ) -> None:
        super().__init__(daemon=True)
        self._config, self._tasks, self._results, self._seconds = config, tasks, results, seconds
        self._process: subprocess.Popen[str] | None = None
        self._since: float | None = None  # when the current image was started
        self._slow = False
        self._over = False

    def run(self) -> None:
        try:
            while (tasks := self._tasks.get()) is not None:
                while tasks and not self._over:
                    tasks = tasks[self._run_tasks(tasks) :]
        except Exception as error:  # must reach the caller, who would otherwise wait forever
            self._results.put(error)

    def kill_if_slow(self) -> None:
        """Kill the process if its current image exceeds the time limit."""
        since, process = self._since, self._process
        if since is not None and process is not None and time.monotonic() - since > self._seconds:
            self._slow = True
            process.kill()

    def stop(self) -> None:
        """End the process and the thread."""
        self._over = True
        if (process := self._process) is not None:
            process.kill()
        self.join(timeout=5)
        self._close()

    def _close(self) -> None:
        """End the process and close its pipes."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # unsent data for a dead process
                        pipe.close()
            self._process = None

    def _start_process(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "noisesieve.pixels.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert process.stdin is not None
        process.stdin.write(self._config + "\n")
        return process

    def _run_tasks(self, tasks: list[ImageTask]) -> int:
        """Send tasks and pass their results on. Returns how many have a result, a failed last one included."""
        if self._process is not None and self._process.poll() is not None:
            self._close()
        first = self._process is None
        process = self._process = self._process or self._start_process()
        assert process.stdin is not None
        assert process.stdout is not None
        message = json.dumps([(t.key, t.slot, t.location.file, t.location.column, t.location.position) for t in tasks])
        self._slow = False
        self._since = time.monotonic()
        done = 0
        try:
            process.stdin.write(message + "\n")
            process.stdin.flush()
            while done < len(tasks) and (line := process.stdout.readline()).endswith("\n"):
                self._results.put(TaskResult(*json.loads(line)))
                self._since = time.monotonic()
                done += 1
        except BrokenPipeError:
            pass  # it died before it took the tasks: the first image is named
        finally:
            self._since = None
        if done == len(tasks):
            return done
        process.kill()  # most likely it is dead already, but it may only have closed its output
        code = process.wait()
        if first and done == 0 and code > 0:
            raise NoisesieveError("A decoding process cannot start.", "Run with --debug, and report it.")
        why = f"decoding took longer than {self._seconds:g} s" if self._slow else f"decoding crashed (exit code {code})"
        self._results.put(TaskResult(tasks[done].key, None, why, 0, 0, transient=True))
        return done + 1
