"""A crew of decoding processes. One that dies or hangs is replaced; the image it held is named, the rest goes on."""

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
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from noisesieve.errors import NoisesieveError
from noisesieve.records import Place

CHUNK = 32  # images a job: enough to hide the pipe, few enough to share the last ones


class Task(NamedTuple):
    """One image to look at or decode."""

    row: int
    slot: int
    place: Place


class Answer(NamedTuple):
    """What became of it. `passing`: the failure may be gone next time (a worker died, memory ran out)."""

    row: int
    sha256: str | None
    status: str
    width: int
    height: int
    passing: bool = False


class Crew:
    """Processes that answer tasks in any order. size 0: look at headers only; store: where pixels go.

    With `thumbnails` the store is a folder, and each task's slot the name of its file there.
    """

    def __init__(
        self,
        count: int,
        *,
        size: int,
        max_pixels: int,
        seconds: float,
        store: Path | None = None,
        slots: int = 0,
        thumbnails: bool = False,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._order = json.dumps(
            {
                "size": size,
                "max_pixels": max_pixels,
                "store": os.fspath(store) if store else None,
                "slots": slots,
                "thumbnails": thumbnails,
            }
        )
        self._pause = pause  # asked while waiting: may raise to stop
        self._jobs: queue.SimpleQueue[list[Task] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
        self._hands = [_Hand(self._order, self._jobs, self._answers, seconds) for _ in range(count)]

    def __enter__(self) -> Crew:
        for hand in self._hands:
            hand.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in self._hands:
            self._jobs.put(None)
        for hand in self._hands:
            hand.dismiss()

    def submit(self, tasks: Sequence[Task]) -> None:
        """Queue tasks; each brings one answer."""
        for start in range(0, len(tasks), CHUNK):
            self._jobs.put(list(tasks[start : start + CHUNK]))

    def answer(self) -> Answer:
        """The next answer, whichever comes first."""
        while True:
            try:
                answer = self._answers.get(timeout=0.5)
            except queue.Empty:
                self._pause()
                for hand in self._hands:
                    hand.check()
                continue
            if isinstance(answer, BaseException):
                raise answer
            return answer

    def work(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Answer all tasks."""
        self.submit(tasks)
        for _ in range(len(tasks)):
            yield self.answer()


class _Hand(threading.Thread):
    """Drives one process: hands it jobs, reads its answers, replaces it when it dies."""

    def __init__(
        self,
        order: str,
        jobs: queue.SimpleQueue[list[Task] | None],
        answers: queue.SimpleQueue[Answer | BaseException],
        seconds: float,
    ) -> None:
        super().__init__(daemon=True)
        self._order, self._jobs, self._answers, self._seconds = order, jobs, answers, seconds
        self._process: subprocess.Popen[str] | None = None
        self._since: float | None = None  # when the image at hand began
        self._slow = False
        self._over = False

    def run(self) -> None:
        try:
            while (tasks := self._jobs.get()) is not None:
                while tasks and not self._over:
                    tasks = tasks[self._drive(tasks) :]
        except Exception as error:  # whatever ends this thread must reach the caller, or it waits forever
            self._answers.put(error)

    def check(self) -> None:
        """End the process if it has held one image for too long."""
        since, process = self._since, self._process
        if since is not None and process is not None and time.monotonic() - since > self._seconds:
            self._slow = True
            process.kill()

    def dismiss(self) -> None:
        """End the process, whatever it does."""
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
                    with contextlib.suppress(OSError):  # the reader is gone, and so is what it did not read
                        pipe.close()
            self._process = None

    def _hire(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "noisesieve.pixels.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert process.stdin is not None
        process.stdin.write(self._order + "\n")
        return process

    def _drive(self, tasks: list[Task]) -> int:
        """Send tasks and pass their answers on; the number answered, the fatal one included."""
        if self._process is not None and self._process.poll() is not None:
            self._close()
        first = self._process is None
        process = self._process = self._process or self._hire()
        assert process.stdin is not None
        assert process.stdout is not None
        job = json.dumps([(t.row, t.slot, t.place.file, t.place.column, t.place.position) for t in tasks])
        self._slow = False
        self._since = time.monotonic()
        done = 0
        try:
            process.stdin.write(job + "\n")
            process.stdin.flush()
            while done < len(tasks) and (line := process.stdout.readline()).endswith("\n"):
                self._answers.put(Answer(*json.loads(line)))
                self._since = time.monotonic()
                done += 1
        except BrokenPipeError:
            pass  # it died before it took the job: the first image is the suspect
        finally:
            self._since = None
        if done == len(tasks):
            return done
        process.kill()  # dead most likely, but one that only closed its end must not be waited for
        code = process.wait()
        if first and done == 0 and code > 0:
            raise NoisesieveError("A decoding process cannot start.", "Run with --debug, and report it.")
        why = (
            f"decoding took longer than {self._seconds:g} s" if self._slow else f"the decoder died on it (code {code})"
        )
        self._answers.put(Answer(tasks[done].row, None, why, 0, 0, passing=True))
        return done + 1
