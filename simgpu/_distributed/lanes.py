"""`Lane`: jobs that are done one after the other, as a stream of NCCL does them.

A thread does them, or whoever waits for one of them: the one who waits does those before it, too,
which saves two changes of thread.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

Job = Callable[[], None]


class Lane:
    """Does jobs in the order in which they were handed over; they must not raise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: deque[Job] = deque()
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()  # for the thread; False ends it
        self._turn = threading.Lock()  # held by whoever does a job
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, job: Job, awaited: bool) -> None:
        """Take a job; its caller does it by `help` where it is `awaited`, the thread otherwise."""
        self._jobs.append(job)
        if awaited:
            return
        with self._start:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        self._calls.put(True)

    def help(self, done: Callable[[], bool]) -> None:
        """Do jobs in the calling thread until `done()`, which one of them makes true."""
        while not done():
            with self._turn:
                if not done():
                    self._do_next()

    def _do_next(self) -> None:
        if self._jobs:
            self._jobs.popleft()()

    def _work(self) -> None:
        while self._calls.get():
            with self._turn:
                self._do_next()

    def close(self) -> None:
        """Let the thread end."""
        self._calls.put(False)
