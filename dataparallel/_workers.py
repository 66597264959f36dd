"""Threads that live between calls, one for each replica that runs at the same time.

A pool that only grows: a call takes as many idle threads as it has jobs and starts the rest, so
nested and concurrent calls never wait for each other. The threads are daemons and know nothing of
modules or devices.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

Job = Callable[[], bool]  # returns whether its thread may be used again


class _Batch:
    """Counts the jobs of one call down."""

    def __init__(self, jobs: int) -> None:
        self._left = jobs
        self._lock = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()

    def one_done(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._done.release()

    def wait(self) -> None:
        self._done.acquire()


class _Worker(threading.Thread):
    def __init__(self, number: int) -> None:
        super().__init__(name=f"dataparallel-{number}", daemon=True)
        self.inbox: SimpleQueue[tuple[Job, _Batch]] = SimpleQueue()

    def run(self) -> None:
        reusable = True
        while reusable:
            job, batch = self.inbox.get()
            reusable = False
            try:
                reusable = job()
            finally:
                # Idle again before the caller hears of it, so that its next call finds this thread;
                # and nothing of the job may stay alive in this frame while it waits.
                del job
                if reusable:
                    _idle.append(self)
                batch.one_done()
                del batch


_idle: list[_Worker] = []
_started = 0
_started_lock = threading.Lock()


def _take() -> _Worker:
    global _started
    try:
        return _idle.pop()
    except IndexError:
        pass
    with _started_lock:
        number = _started
        _started += 1
    worker = _Worker(number)
    worker.start()
    return worker


def run_all(jobs: Sequence[Job]) -> None:
    """Run every job in a thread of its own, all at the same time, and wait for all."""
    batch = _Batch(len(jobs))
    for job in jobs:
        _take().inbox.put((job, batch))
    batch.wait()


# A forked child has none of its parent's threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)
