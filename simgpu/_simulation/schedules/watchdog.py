"""A thread that looks whether the one with the baton waits for what the schedule does not know of.

Most likely that is a lock from before the schedule, held by a thread that waits for its turn: both
would wait for ever. The schedule ends with an error.

A scheduler of real time has no such error, since what it does not know of may come to an end by
itself. There the watchdog prints which task has had the baton for long, and at which line.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simgpu._simulation.schedules import reports
from simgpu._simulation.schedules.tasks import Task
from simgpu.errors import UncontrolledWaitError

EVERY = 0.25  # real seconds
LOOKS = 4  # times in a row that nothing happens
LONG = 20.0  # real seconds for which a task of real time may have the baton without a word

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


def _print_held_turns(scheduler: Any, over: Any) -> None:
    steps, since, limit = -1, _now(), LONG
    while not over.acquire(timeout=min(EVERY, LONG)):
        moved = scheduler.steps != steps
        if moved and not scheduler.resting:
            steps, since, limit = scheduler.steps, _now(), LONG
        elif moved:
            steps = scheduler.steps
        held = _now() - since
        if held >= limit:
            limit *= 2  # the next time after as long again
            text = reports.of_held_turn(
                scheduler.alive(), scheduler.running_task, held, scheduler.resting
            )
            print(text, file=sys.stderr, flush=True)


def _could_go_on(task: Task, running: Task) -> bool:
    waits = task.until is not None and task.deadline is None and not task.until()
    return task is not running and not waits


@contextmanager
def watched(scheduler: Any) -> Iterator[None]:
    """Look after the schedule within the block."""
    over = _new_lock()
    over.acquire()
    # None of the threads that Python lists: nobody is to find one more than before.
    _start_thread(_print_held_turns if scheduler.real_time else _look_after, (scheduler, over))
    try:
        yield
    finally:
        over.release()
