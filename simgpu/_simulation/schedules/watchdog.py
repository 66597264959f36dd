"""A thread that looks whether the one with the baton waits for what the schedule does not know of.

Most likely that is a lock from before the schedule, held by a thread that waits for its turn: both
would wait for ever. It is told, and the schedule ends.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simgpu._simulation.schedules import reports
from simgpu._simulation.schedules.tasks import Task
from simgpu.errors import UncontrolledWaitError

EVERY = 0.25  # real seconds
LOOKS = 4  # times in a row that nothing happens

_start_thread, _new_lock, _now = _thread.start_new_thread, _thread.allocate_lock, time.monotonic


def _cpu_seconds(task: Task) -> float:
    """What the thread of a task has computed so far; where that is not known, the time."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return _now()
    try:
        return time.clock_gettime(clock_of(task.ident))
    except OSError:  # it has ended
        return _now()


def _look_after(scheduler: Any, over: Any) -> None:
    last, still = None, 0
    while not over.acquire(timeout=EVERY):
        running = scheduler.running_task
        now = (running, scheduler.steps, round(_cpu_seconds(running), 3))
        still = still + 1 if now == last else 0
        last = now
        if still >= LOOKS and any(_could_go_on(task, running) for task in scheduler.alive()):
            text = reports.of_uncontrolled_wait(scheduler.alive(), running)
            scheduler.give_up(running, UncontrolledWaitError(text))
            return


def _could_go_on(task: Task, running: Task) -> bool:
    waits = task.until is not None and task.deadline is None and not task.until()
    return task is not running and not waits


@contextmanager
def watched(scheduler: Any, watch: bool = True) -> Iterator[None]:
    """Look after the schedule within the block."""
    if not watch:
        yield
        return
    over = _new_lock()
    over.acquire()
    # None of the threads that Python lists: nobody is to find one more than before.
    _start_thread(_look_after, (scheduler, over))
    try:
        yield
    finally:
        over.release()
