"""`Lane`: a thread that does one job after the other, as a stream of NCCL does.

A job that nobody is ahead of and that its caller waits for is done in the caller's own thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class Lane:
    """Does jobs in the order in which they were handed over; they must not raise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._turn = threading.Lock()  # held by whoever does a job
        self._count = threading.Lock()
        self._open = 0
        self._thread: threading.Thread | None = None

    def submit(self, job: Job, awaited: bool) -> None:
        """Do `job` after all earlier ones; within this call if it is `awaited` and none is open."""
        with self._count:
            self._open += 1
            alone = self._open == 1 and awaited
            if alone:
                self._turn.acquire()
            elif self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        if not alone:
            self._jobs.put(job)
            return
        try:
            job()
        finally:
            self._turn.release()
            self._finished()

    def _finished(self) -> None:
        with self._count:
            self._open -= 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._turn:
                job()
            del job  # it may hold tensors
            self._finished()

    def close(self) -> None:
        """Let the thread end after the jobs that it has."""
        self._jobs.put(None)
