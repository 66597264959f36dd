"""A thread of a schedule, and which thread of the process is which."""

from __future__ import annotations

import _thread
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures._base import LOGGER
from contextlib import contextmanager
from typing import Any, NamedTuple

# By the identifier of the thread; a thread that is not in here is no business of any schedule.
_tasks: dict[int, Task] = {}


class Ended(SystemExit):
    """Ends a thread that its schedule is over for; Python ends threads by it in silence."""


class Choice(NamedTuple):
    """One moment in which several threads could go on."""

    task: int  # who had the baton
    what: str  # where it stood
    options: tuple[int, ...]  # who could go on, in the order of the strategy
    rank: int  # which of these went on


class Task:
    """One thread of a schedule.

    Attributes:
        number: in the order in which they were started; 0 is the thread that entered the schedule.
        until: what it waits for, or None if it can go on.
        deadline: until when, in seconds of the schedule; None for ever.
        in_line: whether it waits for the baton.
        interrupt: what is to be raised in it at its next point.
        patient: whether its time-out comes only where nobody else can go on.
        others: where it waits in real time, whether anybody but tasks may end its wait.
        due: when its time-out comes in real time; 0 where that takes no time.
        expired: whether the time-out came first.
        what: where it stands, in a word; `on` is what it waits for, if there is an object.
        priority, hasty_after: for the strategies.
        thread: the object of Python; None once it has ended and the program keeps it no longer.
        state: what its threads have of their own in the process, with `save` and `restore`; other
            threads find theirs. None for those that share everything.
    """

    __slots__ = (
        "_thread", "baton", "daemon", "deadline", "done", "due", "ended_by", "expired", "expiries",
        "hasty_after", "ident", "in_line", "interrupt", "name", "number", "on", "others", "patient",
        "priority", "run_length", "scheduler", "state", "until", "what", "yielding",
    )  # fmt: skip

    def __init__(self, scheduler: Any, number: int, name: str) -> None:
        self.scheduler, self.number, self.name = scheduler, number, name
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.ident = 0
        self._thread: threading.Thread | weakref.ref[threading.Thread] | None = None
        self.daemon = False
        self.until: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.others: Callable[[], bool] | None = None
        self.due = 0.0
        self.expired = self.done = self.yielding = self.in_line = self.patient = False
        self.interrupt: BaseException | None = None
        self.what, self.on = "start", None
        self.run_length = self.expiries = self.hasty_after = self.ended_by = 0
        self.priority = 0.0
        self.state: Any = None

    @property
    def thread(self) -> threading.Thread | None:
        return self._thread() if isinstance(self._thread, weakref.ref) else self._thread

    @thread.setter
    def thread(self, thread: threading.Thread) -> None:
        self._thread = thread

    def let_go(self) -> None:
        """Keep neither the thread, which has ended, nor what it waited for."""
        if isinstance(self._thread, threading.Thread):
            self._thread = weakref.ref(self._thread)
        self.on = None

    def give_baton(self) -> None:
        """Let it go on; nothing where it has been told so already."""
        with contextlib.suppress(RuntimeError):
            self.baton.release()

    def __repr__(self) -> str:
        return f"thread {self.number} ({self.name})"


def calling_task() -> Task | None:
    """The task of the calling thread; None if it belongs to no schedule."""
    return _tasks.get(_thread.get_ident())


def has_task(ident: int) -> bool:
    """Whether the thread with this identifier belongs to a schedule."""
    return ident in _tasks


def register(task: Task) -> None:
    """The calling thread is this task from now on."""
    task.ident = _thread.get_ident()
    _tasks[task.ident] = task


def forget(task: Task) -> None:
    """The thread of this task is no business of the schedule any more."""
    if _tasks.get(task.ident) is task:
        del _tasks[task.ident]


def forget_all() -> None:
    """In a forked child, whose one thread nobody hands a baton."""
    _tasks.clear()


@contextmanager
def outside(task: Task) -> Iterator[None]:
    """Within the block the calling thread waits for real, as a thread of no schedule."""
    forget(task)
    try:
        yield
    finally:
        _tasks[task.ident] = task


@contextmanager
def standing_in(task: Task) -> Iterator[None]:
    """Within the block the calling thread, which is of no schedule, waits for its task's turn."""
    ident = _thread.get_ident()
    _tasks[ident] = task
    try:
        yield
    finally:
        del _tasks[ident]


@contextmanager
def no_words_of_ended() -> Iterator[None]:
    """Within the block, pools do not log that their threads have ended by Ended."""

    def says_something(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], Ended))

    LOGGER.addFilter(says_something)
    try:
        yield
    finally:
        LOGGER.removeFilter(says_something)
