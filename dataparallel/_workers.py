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

# Seconds. Threads that issue many short operations at the same time spend more on handing Python's
# global lock to each other than on the operations. A replica that is done within this time is let
# finish first; the price for one that is not is that the others begin this much later.
PATIENCE = 0.0005

Job = Callable[[], bool]  # returns whether its thread may be used again


class _Batch:
    """The jobs of one call: which have not begun, and how many have not ended."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._waiting = list(reversed(jobs))
        self._left = len(jobs)
        self._free: list[_Worker] = []
        self._lock = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()

    def start_next(self) -> bool:
        """Give the next job to a thread; False if all have begun."""
        try:
            job = self._waiting.pop()
        except IndexError:
            return False
        try:
            worker = _take()
        except RuntimeError:  # the system has no more threads: this one does the work
            job()
            self.one_done(None)
        else:
            worker.inbox.put((job, self))
        return True

    def one_done(self, worker: _Worker | None) -> None:
        """A job has ended; `worker` may be used again, once all have: no thread gets two jobs."""
        with self._lock:
            if worker is not None:
                self._free.append(worker)
            self._left -= 1
            if self._left == 0:
                # Before the caller hears of it, so that its next call finds these threads.
                _idle.extend(self._free)
                self._done.release()

    def wait(self, seconds: float = -1) -> bool:
        """Whether all jobs have ended (within that time, if any is given)."""
        return self._done.acquire(timeout=seconds)


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
                # Nothing of the job may stay alive in this frame while it waits for another.
                del job
                batch.start_next()
                batch.one_done(self if reusable else None)
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
    """Run every job in a thread of its own and wait for all.

    Jobs begin one after the other while they are short, each as the one before it ends; as soon as
    one takes longer than `PATIENCE`, all others begin at once.
    """
    batch = _Batch(jobs)
    batch.start_next()
    if not batch.wait(PATIENCE):
        while batch.start_next():
            pass
        batch.wait()


def _forget_threads() -> None:
    """A forked child has none of its parent's threads, and may have copied a held lock."""
    global _started_lock
    _idle.clear()
    _started_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
