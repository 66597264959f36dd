"""The threads of a schedule as tasks, and which thread of the process is which task."""

from __future__ import annotations

import _thread
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures._base import LOGGER
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# By the identifier of the thread. No schedule controls a thread that is not in here.
tasks_of_threads: dict[int, Task] = {}


class ThreadEnded(SystemExit):
    """Ends a thread that its schedule is over for; Python ends threads by it in silence."""


def held_lock() -> _thread.LockType:
    """A new lock, which is taken."""
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False, repr=False)
class Task:
    """One thread of a schedule.

    Attributes:
        number: in the order in which they were started; 0 is the thread that entered the schedule.
        until: what it waits for, or None if it can go on.
        deadline: until when, in seconds of the schedule; None for ever.
        waits_to_run: whether another task runs, and it waits for its lock.
        interrupt: what is to be raised in it at its next point.
        patient: whether its time-out comes only where no other thread can go on.
        others: where it waits in real time, whether something other than a task may end its wait.
        due: when its time-out comes in real time; 0 where that takes no time.
        expired: whether the time-out came first.
        what: its state, in a word; `on` is what it waits for, if there is an object.
        priority, hasty_after: for the strategies.
        find_thread: returns the object of Python; None once the thread has ended and the program
            keeps it no longer.
        state: what its threads have of their own in the process, with `save` and `restore`; other
            threads find theirs. None for those that share everything.
    """

    scheduler: Any
    number: int
    name: str
    may_run: Any = field(default_factory=held_lock)
    ident: int = 0
    find_thread: Callable[[], threading.Thread | None] = lambda: None
    daemon: bool = False
    until: Callable[[], bool] | None = None
    deadline: float | None = None
    others: Callable[[], bool] | None = None
    due: float = 0.0
    expired: bool = False
    done: bool = False
    yielding: bool = False
    waits_to_run: bool = False
    patient: bool = False
    interrupt: BaseException | None = None
    what: str = "start"
    on: Any = None
    run_length: int = 0
    expiries: int = 0
    hasty_after: int = 0
    ended_by: int = 0
    priority: float = 0.0
    state: Any = None

    def resume(self) -> None:
        """Make it go on; nothing where it goes on already."""
        with contextlib.suppress(RuntimeError):
            self.may_run.release()

    def __repr__(self) -> str:
        return f"thread {self.number} ({self.name})"


def calling_task() -> Task | None:
    """The task of the calling thread; None if it belongs to no schedule."""
    return tasks_of_threads.get(_thread.get_ident())


def register_task(task: Task) -> None:
    """Make the calling thread be this task from now on."""
    task.ident = _thread.get_ident()
    tasks_of_threads[task.ident] = task


def forget_task(task: Task) -> None:
    """Make the thread of this task be one that no schedule controls."""
    if tasks_of_threads.get(task.ident) is task:
        del tasks_of_threads[task.ident]


@contextmanager
def outside(task: Task) -> Iterator[None]:
    """Within the block the calling thread waits for real, as a thread outside the schedule."""
    forget_task(task)
    try:
        yield
    finally:
        tasks_of_threads[task.ident] = task


@contextmanager
def standing_in(task: Task) -> Iterator[None]:
    """Within the block the calling thread, outside of any schedule, waits for its task's turn."""
    ident = _thread.get_ident()
    tasks_of_threads[ident] = task
    try:
        yield
    finally:
        del tasks_of_threads[ident]


@contextmanager
def ended_threads_unlogged() -> Iterator[None]:
    """Within the block, thread pools do not log the `ThreadEnded` that ends their threads."""

    def is_logged(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], ThreadEnded))

    LOGGER.addFilter(is_logged)
    try:
        yield
    finally:
        LOGGER.removeFilter(is_logged)
