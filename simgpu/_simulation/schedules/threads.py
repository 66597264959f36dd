"""Threads and time in a schedule: start, join, sleep, interrupts, and the clock."""

from __future__ import annotations

import _thread
import concurrent.futures.thread as pools
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from simgpu._runtime.clock import Clock
from simgpu._simulation.schedules import reports
from simgpu._simulation.schedules.baton import TICK
from simgpu._simulation.schedules.scheduler import Scheduler, current
from simgpu._simulation.schedules.tasks import Task, calling_task, outside

_stock_start, _stock_join = threading.Thread.start, threading.Thread.join
_stock_interrupt = _thread.interrupt_main
_stock_pool = pools.ThreadPoolExecutor.__init__
_stock_hash = Future.__hash__
_sleep = time.sleep
EPOCH = 1_700_000_000.0  # what time.time() says at the beginning of every schedule

# Of the standard library: they wait for other processes, or for sockets, which takes real time.
_PROCESSES = ("multiprocessing.",)
_REAL_TIME = (*_PROCESSES, "asyncio.", "subprocess", "selectors", "socket")


def _is_called_by(modules: tuple[str, ...]) -> bool:
    """Whether the caller of the calling function is one of these modules."""
    name: str = sys._getframe(2).f_globals.get("__name__", "")
    return name.startswith(modules)


def new_start(_: Any = None) -> Callable[[threading.Thread], None]:
    """A `Thread.start` for one schedule: a thread that one of the schedule starts belongs to it.

    A function of its own for each, so that pools of threads can tell whose their threads are.
    """

    def start(self: threading.Thread) -> None:
        me = calling_task()
        if me is None:
            _stock_start(self)
        elif _is_called_by(_PROCESSES):
            with outside(me):
                _stock_start(self)
        else:
            me.scheduler.start(self, _stock_start)

    return start


def new_counter(stock: Callable[[], int]) -> Callable[[], int]:
    """What numbers the names of threads, from the beginning, for those of the schedule."""
    numbers = itertools.count(1)

    def number(*_: Any) -> int:  # called as a method, too
        return stock() if calling_task() is None else next(numbers)

    return number


def _task_of(thread: threading.Thread, scheduler: Scheduler) -> Task | None:
    return next((task for task in scheduler.tasks if task.thread is thread), None)


def join(self: threading.Thread, timeout: float | None = None) -> None:
    """`Thread.join`."""
    me = calling_task()
    task = None if me is None else _task_of(self, me.scheduler)
    if me is not None and me.scheduler.real_time and self.is_alive() and task is not me:
        me.scheduler.block(lambda: not self.is_alive(), timeout, "thread", self, reports.outsiders)
        timeout = 0 if self.is_alive() else timeout
    if me is None or task is None or task is me or self.ident is None:
        _stock_join(self, timeout)  # which also raises what Python raises
        return
    me.scheduler.point("join", task)
    if not task.done and not me.scheduler.block(
        lambda: task.done, timeout, f"join {task.number}", task
    ):
        return
    with outside(me):
        _stock_join(self)


def sleep(seconds: float) -> None:
    """`time.sleep`: others go on meanwhile. It takes no time but in a scheduler of real time."""
    me = calling_task()
    if me is None or seconds < 0:
        _sleep(seconds)
    elif seconds == 0:
        me.scheduler.point("sleep", yielding=True)
    else:
        me.scheduler.block(lambda: False, seconds, "sleep", others=lambda: False)


def interrupt_main(*args: Any) -> None:
    """`_thread.interrupt_main`: KeyboardInterrupt in the thread that entered the schedule."""
    me = calling_task()
    if me is None or args:
        _stock_interrupt(*args)
    else:
        me.scheduler.interrupt()


def telling(stock: Callable[[], Any], epoch: float = 0.0) -> Callable[[], Any]:
    """A function of `time` that tells the schedule's time to its threads."""
    nanoseconds = stock.__name__.endswith("_ns")

    def tell() -> Any:
        me = calling_task()
        if me is None or _is_called_by(_REAL_TIME):
            return stock()
        me.scheduler.now += TICK / 10  # a loop that looks at nothing but the clock comes to an end
        now = epoch + me.scheduler.now
        return int(now * 1e9) if nanoseconds else now

    tell.__name__ = stock.__name__
    return tell


class ScheduleClock(Clock):
    """The clock of devices while a schedule is in force."""

    def now(self) -> float:
        scheduler = current()
        return super().now() if scheduler is None else scheduler.now

    def wait_until(self, moment: float) -> None:
        me = calling_task()
        if me is None:
            super().wait_until(moment)
        elif moment > me.scheduler.now:
            sleep(moment - me.scheduler.now)


class _InOrder(dict[Any, None]):
    """A set that is gone through in the order in which it was filled, and not by address."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(dict.fromkeys(items))

    def add(self, item: Any) -> None:
        self[item] = None


def new_pool(self: Any, *args: Any, **kwargs: Any) -> None:
    """`ThreadPoolExecutor.__init__`: its threads are joined in the order of their start."""
    _stock_pool(self, *args, **kwargs)
    if calling_task() is not None:
        self._threads = _InOrder(self._threads)


def hash_of_future(self: Future[Any]) -> int:
    """`Future.__hash__`: by number and not by address, so that sets of them keep their order."""
    me = calling_task()
    if "_simgpu_number" not in self.__dict__:
        if me is None:
            return _stock_hash(self)
        self._simgpu_number = next(me.scheduler.numbers)  # type: ignore[attr-defined]
    return int(self._simgpu_number)  # type: ignore[attr-defined]


def acquire_futures(self: Any, futures: Iterable[Future[Any]]) -> None:
    """`_AcquireFutures.__init__`: their locks are taken in the order of their numbers."""
    self.futures = sorted(futures, key=hash)
