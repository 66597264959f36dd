"""Threads that do not go on: what each waits for, whether others move, and the watchdog.

The texts of a deadlock, a livelock and a wait outside of the schedule are made here.
"""

from __future__ import annotations

import _thread
import itertools
import linecache
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import _base, thread
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from simgpu._explore.schedules.tasks import Task, held_lock, tasks_of_threads
from simgpu._util.frames import current_frames, is_of_program, is_own, module_of
from simgpu._util.naming import plural
from simgpu.errors import UncontrolledWaitError

_LIBRARY = {threading.__file__, queue.__file__, _base.__file__, thread.__file__}
_HERE = str(Path(__file__).parents[2])
_sleep_on_host, _host_time = time.sleep, time.monotonic
watchdogs: set[int] = set()  # the threads that look after schedules
_CHECK_EVERY, _CHECKS, _LONGEST = 0.01, 3, 0.5  # seconds, times without a movement, seconds

_WORDS = {
    "thread": "waits for the end of a thread",
    "process": "waits for a child process",
    "socket": "waits for a socket or a pipe",
    "lock": "waits for a lock",
    "file": "waits for the lock of a file",
    "queue.get": "waits for an item of a queue",
    "condition": "waits on a condition (an event, barrier, semaphore, queue or future)",
    "sleep": "sleeps",
    "event": "asks whether an event is set",
    "start": "can go on",
    "end": "has left the block of the schedule",
}


def of_deadlock(tasks: Sequence[Task]) -> str:
    """The text of the error when no thread can go on."""
    head, others = "deadlock: no thread can go on", _outsiders()
    if others:
        head += (
            f" (of the process, {plural(len(others), 'thread')} from before the schedule or from "
            "elsewhere: none moves, and what such a thread would do is not controlled)"
        )
    return _with_lines(head, tasks)


def of_livelock(tasks: Sequence[Task], steps: int, idle: int) -> str:
    """The text of the error when threads go on for ever."""
    head = f"livelock: {steps} steps, the last {idle} of them without any device work"
    return _with_lines(head, tasks)


def _with_lines(head: str, tasks: Sequence[Task]) -> str:
    return "\n".join([head, *map(line_of, tasks)])


def _of_uncontrolled_wait(tasks: Sequence[Task], stuck: Task) -> str:
    """The text of the error when one waits for what the schedule does not know of."""
    head = (
        f"{stuck!r} waits for something that the schedule does not know of, and keeps the others "
        "from going on: a lock or a queue.SimpleQueue from before the schedule (make it within), "
        "or another process (DataLoader: num_workers=0), which no schedule controls: a test of "
        'such leaves them out by @pytest.mark.without("--schedules", reason=...). It waits at '
        f"{_place_of(stuck)}"
    )
    return _with_lines(head, [task for task in tasks if task is not stuck])


def line_of(task: Task) -> str:
    """One task: its number and name, what it waits for, and where."""
    words = _WORDS.get(task.what)
    if task.what.startswith("join "):
        words = f"waits for the end of thread {task.what[5:]}"
    if words is None:
        words = f"waits in {task.what}" if task.until else f"is about to run {task.what}"
    if task.until is None and task.what in ("lock", "queue.get"):
        words = "can go on"
    holder = getattr(task.on, "held_by", None)
    if holder is not None and task.until is not None:
        words += f" that {holder!r} holds"
    if task.deadline is not None:
        words += f", until {task.deadline:.6f} s"
    return f"  {task!r} {words}, at {_place_of(task)}"


def _place_of(task: Task) -> str:
    """file:line and the text of the line of a task, in the program."""
    place = current_frames().get(task.ident)
    while place is not None and _is_library(place):
        place = place.f_back
    if place is None:
        return "its beginning"
    return _line_of_frame(place)


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name in _LIBRARY or name.startswith(_HERE)


def _outsiders() -> dict[int, FrameType]:
    """The frames of threads that are not of the schedule."""
    return {
        ident: frame
        for ident, frame in current_frames().items()
        if ident not in tasks_of_threads and ident not in watchdogs
    }


def positions_outside() -> dict[int, tuple[tuple[CodeType, Any], ...]]:
    """Where each thread outside the schedule is: the code of all its frames, and where in it.

    One that waits again in the schedule comes through what replaces Python's locks, and is where it
    was all the same: simgpu's frames are left out. Nor does the instruction count, but its source:
    a loop is compiled with several instructions for one condition.
    """
    return {ident: tuple(_steps_of(frame)) for ident, frame in _outsiders().items()}


def _steps_of(frame: FrameType | None) -> Iterator[tuple[CodeType, Any]]:
    while frame is not None:
        if not is_own(module_of(frame)):
            columns = getattr(frame.f_code, "co_positions", None)  # since Python 3.11
            at = columns and next(itertools.islice(columns(), frame.f_lasti // 2, None), None)
            yield frame.f_code, at or frame.f_lineno
        frame = frame.f_back


def _of_held_turn(tasks: Sequence[Task], running: Task, seconds: float, resting: bool) -> str:
    """What the watchdog of ranks prints where the same one has had the turn for so long."""
    others = [task for task in tasks if task.number and (resting or task is not running)]
    if resting:
        head = (
            f"simgpu.ranks: no rank has gone on for {seconds:.0f} s. They sleep, or wait for each "
            "other, or for what comes from outside, as from another process:"
        )
    else:
        head = (
            f"simgpu.ranks: {running.name} has had the turn for {seconds:.0f} s, at "
            f"{_places_of(running)}. It computes, or waits in a way that simgpu does not know."
        )
        if others:
            head += (
                " The others go on where it waits for them, sleeps (in a loop: time.sleep(0)), or "
                "waits for a lock, condition, queue, thread, child process or socket of Python:"
            )
    return _with_lines(head, others)


def _places_of(task: Task) -> str:
    """The line of the program where a task is, and the innermost one where that is another."""
    innermost = frame = current_frames().get(task.ident)
    while frame is not None and not is_of_program(frame.f_code.co_filename):
        frame = frame.f_back
    if innermost is None:
        return "its beginning"
    found = dict.fromkeys(map(_line_of_frame, filter(None, (frame, innermost))))
    return " in ".join(found)


def _line_of_frame(frame: FrameType) -> str:
    name, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(name, line).strip()
    return f"{name}:{line}: {text}" if text else f"{name}:{line}"


def others_make_progress(tasks: Sequence[Task]) -> bool:
    """Whether a thread from elsewhere moves, and so may yet enable one of ours.

    True as well when one of ours can go on by now.
    """
    end, before, still = _host_time() + _LONGEST, _positions(), 0
    while before and still < _CHECKS and _host_time() < end:
        _sleep_on_host(_CHECK_EVERY)
        if any(task.until is None or task.until() for task in tasks):
            return True
        now = _positions()
        still = still + 1 if now == before else 0
        before = now
    return False


def _positions() -> dict[int, tuple[int, int]]:
    return {ident: (id(frame), frame.f_lasti) for ident, frame in _outsiders().items()}


# The watchdog: detects that the running thread waits for something outside the schedule.
#
# Most likely that is a lock from before the schedule, held by a thread that waits for its turn:
# both would wait for ever. The schedule ends with an error.
#
# A scheduler of real time has no such error, since what it does not know of may come to an end by
# itself. There the watchdog prints which task has run for long, and at which line.

EVERY = 0.25  # real seconds
LOOKS = 4  # times in a row that nothing happens
LONG = 20.0  # real seconds for which a task of real time may run without a word


def _cpu_seconds(task: Task) -> float:
    """What the thread of a task has computed so far; where that is not known, the time."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return _host_time()
    try:
        return time.clock_gettime(clock_of(task.ident))
    except OSError:  # it has ended
        return _host_time()


def _watch(look: Callable[[Any, Any], None], scheduler: Any, over: Any) -> None:
    """The code of a watchdog's thread."""
    try:
        look(scheduler, over)
    finally:
        watchdogs.discard(_thread.get_ident())


def _look_after(scheduler: Any, over: Any) -> None:
    last, still = None, 0
    while not over.acquire(timeout=EVERY):
        running = scheduler.running_task
        now = (running, scheduler.steps, round(_cpu_seconds(running), 3))
        still = still + 1 if now == last else 0
        last = now
        if still >= LOOKS and any(_could_go_on(task, running) for task in scheduler.alive()):
            text = _of_uncontrolled_wait(scheduler.alive(), running)
            scheduler.give_up(running, UncontrolledWaitError(text))
            return


def _print_held_turns(scheduler: Any, over: Any) -> None:
    steps, since, limit = -1, _host_time(), LONG
    while not over.acquire(timeout=min(EVERY, LONG)):
        moved = scheduler.steps != steps
        if moved and not scheduler.resting:
            steps, since, limit = scheduler.steps, _host_time(), LONG
        elif moved:
            steps = scheduler.steps
        held = _host_time() - since
        if held >= limit:
            limit *= 2  # the next time after as long again
            text = _of_held_turn(scheduler.alive(), scheduler.running_task, held, scheduler.resting)
            print(text, file=sys.stderr, flush=True)


def _could_go_on(task: Task, running: Task) -> bool:
    waits = task.until is not None and task.deadline is None and not task.until()
    return task is not running and not waits


@contextmanager
def watched(scheduler: Any) -> Iterator[None]:
    """Look after the schedule within the block."""
    over = held_lock()
    # None of the threads that Python lists: a program that counts them finds no more than before.
    look = _print_held_turns if scheduler.real_time else _look_after
    watchdogs.add(_thread.start_new_thread(_watch, (look, scheduler, over)))
    try:
        yield
    finally:
        over.release()
