"""A pool of decoding processes. One that dies or hangs is replaced, and its image is tried once more by another one.

If that fails too, the image gets a status, and the rest continues. Ours: in the pools of Python and loky a crash costs
all that is queued and names nothing, and a script without a main guard would run twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from types import TracebackType
from typing import IO

import noisesieve
from noisesieve.core.errors import NoisesieveError
from noisesieve.pixels.task_queue import CHUNK, ImageTask, Pass, TaskQueue, TaskResult

WAITING = 256  # results that wait for the caller, at most: then the workers wait, or the pixels would fill the memory


class WorkerPool:
    """Processes that run tasks in any order. They are started by the first task, and serve every pass of a command."""

    def __init__(
        self, count: int, *, max_pixels: int, seconds: float, pause: Callable[[], None] = lambda: None
    ) -> None:
        self._count, self._max_pixels = count, max_pixels
        self._seconds = seconds  # after which a worker counts as hanging
        self._pause = pause  # called while waiting; may raise to stop
        self._forget()

    def _forget(self) -> None:
        self._queue = TaskQueue()
        self._results: queue.Queue[TaskResult | BaseException] = queue.Queue(WAITING)
        self._workers: list[_WorkerThread] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_processes()

    def end_processes(self) -> None:
        """End all processes and drop what they have not done. The next task starts new ones."""
        self._queue.close()
        for worker in self._workers:
            worker.end_process()
        while any(worker.is_alive() for worker in self._workers):  # one may wait for a place in the queue
            with contextlib.suppress(queue.Empty):
                self._results.get(timeout=0.01)
        for worker in self._workers:
            worker.close()
        self._forget()

    def submit(self, tasks: Iterable[ImageTask], work: Pass, *, count: int | None = None) -> int:
        """Queue `count` tasks, or all, which are made when a worker is free. Returns how many results they give."""
        if count is None:
            tasks = list(tasks)
            count = len(tasks)
        self._queue.add(work, tasks)
        for _ in range(min(self._count, -(-count // CHUNK)) - len(self._workers)):
            self._workers.append(_WorkerThread(self._max_pixels, self._queue, self._results, self._seconds))
            self._workers[-1].start()
        return count

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
            if not self._queue.try_again(result):
                return result

    def run(self, tasks: Iterable[ImageTask], work: Pass, *, count: int | None = None) -> Iterator[TaskResult]:
        """Run all tasks and yield their results. If the caller stops before the last one, the processes end."""
        left = self.submit(tasks, work, count=count)
        try:
            while left:
                yield self.result()
                left -= 1
        finally:
            if left:
                self.end_processes()


class _WorkerThread(threading.Thread):
    """Drives one process: sends it tasks, reads its results, replaces it when it dies."""

    def __init__(
        self,
        max_pixels: int,
        tasks: TaskQueue,
        results: queue.Queue[TaskResult | BaseException],
        seconds: float,
    ) -> None:
        super().__init__(daemon=True)
        self._max_pixels, self._tasks, self._results, self._seconds = max_pixels, tasks, results, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._since: float | None = None  # when the current image was started
        self._slow = False
        self._over = False

    def run(self) -> None:
        try:
            while (message := self._tasks.next()) is not None:
                work, tasks = message
                while tasks and not self._over:
                    tasks = tasks[self._run_tasks(work, tasks) :]
        except Exception as error:  # must reach the caller, who would otherwise wait forever
            self._results.put(error)

    def kill_if_slow(self) -> None:
        """Kill the process if its current image exceeds the time limit."""
        since, process = self._since, self._process
        if since is not None and process is not None and time.monotonic() - since > self._seconds:
            self._slow = True
            process.kill()

    def end_process(self) -> None:
        """End the process; the thread ends soon after."""
        self._over = True
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process and close its pipes."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # unsent data for a dead process
                        pipe.close()
            self._process = None

    def _start_process(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "noisesieve.pixels.worker"],  # -P: never import from the working folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": _import_path(), "PYTHONSAFEPATH": "1"},
        )
        assert process.stdin is not None
        process.stdin.write(b"%d\n" % self._max_pixels)
        return process

    def _run_tasks(self, work: Pass, tasks: list[ImageTask]) -> int:
        """Send tasks and pass their results on. Returns how many have a result, a failed last one included."""
        if self._process is not None and self._process.poll() is not None:
            self.close()
        first = self._process is None
        process = self._process = self._process or self._start_process()
        assert process.stdin is not None
        assert process.stdout is not None
        listed = [(t.key, t.location.file, t.location.column, t.location.position, len(t.blob)) for t in tasks]
        message = json.dumps([asdict(work), listed]).encode() + b"\n" + b"".join(t.blob for t in tasks)
        self._slow = False
        self._since = time.monotonic()
        done = 0
        try:
            process.stdin.write(message)
            process.stdin.flush()
            while done < len(tasks) and (result := _read_result(process.stdout)) is not None:
                self._since = None  # waiting for the caller is not slow
                self._results.put(result)
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


def _import_path() -> str:
    """Return where a worker finds its modules: as here, but never in the working folder, which may be the dataset."""
    here, package = os.getcwd(), os.path.dirname(os.path.dirname(noisesieve.__file__))
    return os.pathsep.join(path for path in (*sys.path, package) if path and (path == package or path != here))


def _read_result(pipe: IO[bytes]) -> TaskResult | None:
    """Read one line and the bytes after it; None if the process died meanwhile."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    key, sha256, status, width, height, transient, length = json.loads(line)
    data = pipe.read(length)
    return TaskResult(key, sha256, status, width, height, transient, data) if len(data) == length else None
