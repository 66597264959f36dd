"""A pool of threads for replicas, which live on between calls.

A pool that only grows: where no thread is idle a new one is started, so nested and concurrent calls
never wait for each other. A thread that is soon done with a replica takes the next one of its call.
The threads are daemons and know nothing of modules or devices. Locks, queues, threads and time are
looked up in Python's modules when they are needed: a program that replaces them, to decide which
thread runs when, decides so here, once it has called `exchange_pool` for threads that it knows.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

# Seconds, as long as Python lets a thread keep its global lock. Threads that issue many short
# operations at the same time spend more on handing that lock to each other than on the operations.
# A replica that is done within this time may finish before the next one begins; the price for
# one that is not is that all others begin this much later.
PATIENCE = 0.005

Job = Callable[[], bool]  # returns whether its thread may be used again


class _Batch:
    """The jobs of one call: which have not begun, when the last one began, how many have not ended.

    A thread gets several of them one after the other, unless one leaves it in another state.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._waiting = list(reversed(jobs))
        self._count = self._left = len(jobs)
        self._threads_asked = 0
        self._free: list[_Worker] = []
        self._pool = _pool
        self._lock = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()

    def next_job(self) -> Job | None:
        """A job for the calling thread, which it has to run; None if all have begun."""
        try:
            job = self._waiting.pop()
        except IndexError:
            return None
        self._began = time.monotonic()
        return job

    def start_next(self) -> bool:
        """Ask one more thread for the next job; False if those asked are enough for all.

        The thread takes the job itself: a caller that is interrupted here has none to lose.
        """
        if not self._waiting or self._threads_asked >= self._count:
            return False
        try:
            worker = self._pool.idle_or_new()
        except RuntimeError:  # the system has no more threads: this one does the work
            job = self.next_job()
            if job is None:
                return False
            job()
            self.one_done()
        else:
            self._began = time.monotonic()
            worker.inbox.put(self)
            self._threads_asked += 1
        return True

    def one_done(self, worker: _Worker | None = None) -> Job | None:
        """A job has ended, and left `worker` free for the one that is returned."""
        job = None if worker is None else self.next_job()
        with self._lock:
            if worker is not None and job is None:
                self._free.append(worker)
            self._left -= 1
            if self._left == 0:
                # Before the caller hears of it, so that its next call finds these threads.
                self._pool.idle.extend(self._free)
                self._done.release()
        return job

    def not_needed(self, worker: _Worker) -> None:
        """`worker` was asked, and has found no job left."""
        self._pool.idle.append(worker)

    def wait(self) -> None:
        """Wait until all jobs have ended; once one takes long, begin all others."""
        while not self._done.acquire(timeout=self._patience()):
            if self._patience() == 0:
                while self.start_next():
                    pass
                self._done.acquire()
                return

    def _patience(self) -> float:
        return max(0.0, self._began + PATIENCE - time.monotonic())


class _Worker(threading.Thread):
    def __init__(self, number: int) -> None:
        super().__init__(name=f"dataparallel-{number}", daemon=True)
        self.inbox: queue.SimpleQueue[_Batch] = queue.SimpleQueue()

    def run(self) -> None:
        reusable = True
        while reusable:
            batch = self.inbox.get()
            job = batch.next_job()
            if job is None:  # others were faster
                batch.not_needed(self)
            while job is not None:
                reusable = False
                try:
                    reusable = job()
                finally:
                    if not reusable:
                        batch.start_next()
                    # Nothing of the job may stay alive in this frame: not while it waits for
                    # another, and not once the caller has heard that this one is done.
                    job = None
                    job = batch.one_done(self if reusable else None)
            del batch


class _Pool:
    """The threads that are idle now."""

    def __init__(self) -> None:
        self.idle: list[_Worker] = []
        self._numbers = itertools.count()

    def idle_or_new(self) -> _Worker:
        try:
            return self.idle.pop()
        except IndexError:
            pass
        worker = _Worker(next(self._numbers))
        worker.start()
        return worker


_pool = _Pool()


def exchange_pool(pool: _Pool | None = None) -> _Pool:
    """Take the threads of later calls from `pool`, by default a new one; returns the one before."""
    global _pool
    outer, _pool = _pool, _Pool() if pool is None else pool
    return outer


def run_all(jobs: Sequence[Job]) -> None:
    """Run every job in a thread and wait for all.

    Jobs begin one after the other while they are short, each as the one before it ends; as soon as
    one takes longer than `PATIENCE`, all others begin at once: they may wait for each other.
    """
    batch = _Batch(jobs)
    try:
        batch.start_next()
        batch.wait()
    except BaseException:
        # Interrupted. Those that have begun may wait for those that have not, and would for ever.
        while batch.start_next():
            pass
        raise


if hasattr(os, "register_at_fork"):
    # A child has none of its parent's threads.
    os.register_at_fork(after_in_child=exchange_pool)
