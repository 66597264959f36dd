"""What every thread of a schedule waits for, and at which line: the text of a deadlock."""

from __future__ import annotations

import linecache
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import _base, thread
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from simgpu._counting import plural
from simgpu._runtime.frames import current_frames
from simgpu._simulation.schedules.tasks import Task, has_task

_LIBRARY = {threading.__file__, queue.__file__, _base.__file__, thread.__file__}
_HERE = str(Path(__file__).parents[2])
_TORCH = str(Path(torch.__file__).parent)
_PYTHON = str(Path(threading.__file__).parent)
_WATCHDOG = str(Path(__file__).with_name("watchdog.py"))
_sleep, _monotonic = time.sleep, time.monotonic  # of the host
_LOOK_EVERY, _LOOKS, _LONGEST = 0.01, 3, 0.5  # seconds, times without a movement, seconds

_WORDS = {
    "thread": "waits for the end of a thread",
    "process": "waits for a child process",
    "socket": "waits for a socket or a pipe",
    "lock": "waits for a lock",
    "queue.get": "waits for an item of a queue",
    "condition": "waits on a condition (an event, barrier, semaphore, queue or future)",
    "sleep": "sleeps",
    "event": "asks whether an event is set",
    "start": "can go on",
    "end": "has left the block of the schedule",
}


def of_deadlock(tasks: Sequence[Task]) -> str:
    """The text of the error when no thread can go on."""
    head = "deadlock: no thread can go on"
    others = _outsiders(tasks)
    if others:
        head += (
            f" (of the process, {plural(len(others), 'thread')} from before the schedule or from "
            "elsewhere: none moves, and what such a thread would do is not controlled)"
        )
    return "\n".join([head, *map(line_of, tasks)])


def of_livelock(tasks: Sequence[Task], steps: int, idle: int) -> str:
    """The text of the error when threads go on for ever."""
    head = f"livelock: {steps} steps, the last {idle} of them without any device work"
    return "\n".join([head, *map(line_of, tasks)])


def of_uncontrolled_wait(tasks: Sequence[Task], stuck: Task) -> str:
    """The text of the error when one waits for what the schedule does not know of."""
    others = [task for task in tasks if task is not stuck]
    head = (
        f"{stuck!r} waits for something that the schedule does not know of, and keeps the others "
        "from going on: a lock or a queue.SimpleQueue from before the schedule (make it within), "
        "or another process (DataLoader: num_workers=0), which no schedule controls: a test of "
        'such leaves them out by @pytest.mark.without("--schedules", reason=...). It waits at '
        f"{place_of(stuck)}"
    )
    return "\n".join([head, *map(line_of, others)])


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
    return f"  {task!r} {words}, at {place_of(task)}"


def place_of(task: Task) -> str:
    """file:line and the text of the line where a task stands, in the program."""
    place = current_frames().get(task.ident)
    while place is not None and _is_library(place):
        place = place.f_back
    if place is None:
        return "its beginning"
    return _line_of_frame(place)


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name in _LIBRARY or name.startswith(_HERE)


def _outsiders(tasks: Sequence[Task]) -> dict[int, Any]:
    """The frames of threads that are not of the schedule."""
    ours = {task.ident for task in tasks}
    return {
        ident: frame
        for ident, frame in current_frames().items()
        if ident not in ours and frame.f_code.co_filename != _WATCHDOG
    }


def outsiders() -> bool:
    """Whether the process has threads that are of no schedule, and may let one of ours go on."""
    return any(
        not has_task(ident) and frame.f_code.co_filename != _WATCHDOG
        for ident, frame in current_frames().items()
    )


def of_held_turn(tasks: Sequence[Task], running: Task, seconds: float, resting: bool) -> str:
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
    return "\n".join([head, *map(line_of, others)])


def _places_of(task: Task) -> str:
    """The line of the program where a task is, and the innermost one where that is another."""
    innermost = frame = current_frames().get(task.ident)
    while frame is not None and _is_of_the_system(frame.f_code.co_filename):
        frame = frame.f_back
    if innermost is None:
        return "its beginning"
    found = dict.fromkeys(map(_line_of_frame, filter(None, (frame, innermost))))
    return " in ".join(found)


def _line_of_frame(frame: FrameType) -> str:
    name, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(name, line).strip()
    return f"{name}:{line}: {text}" if text else f"{name}:{line}"


def _is_of_the_system(file: str) -> bool:
    """Whether a file is of Python, of torch or of simgpu."""
    of_python = file.startswith((_PYTHON, "<frozen")) and "-packages" not in file
    return of_python or file.startswith((_HERE, _TORCH))


def others_make_progress(tasks: Sequence[Task]) -> bool:
    """Whether a thread from elsewhere moves, and so may yet let one of ours go on.

    True as well when one of ours can go on by now.
    """
    end = _monotonic() + _LONGEST
    before = _positions(tasks)
    still = 0
    while before and still < _LOOKS and _monotonic() < end:
        _sleep(_LOOK_EVERY)
        if any(task.until is None or task.until() for task in tasks):
            return True
        now = _positions(tasks)
        still = still + 1 if now == before else 0
        before = now
    return False


def _positions(tasks: Sequence[Task]) -> dict[int, tuple[int, int]]:
    return {ident: (id(f), f.f_lasti) for ident, f in _outsiders(tasks).items()}
