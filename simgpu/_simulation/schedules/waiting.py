"""`threading.Condition` and `queue.SimpleQueue` of a schedule, and with them all that waits.

Events, barriers, semaphores, timers, queues and futures are Python code over these two and locks.
"""

from __future__ import annotations

import _thread
import queue
import threading
from types import GenericAlias
from typing import Any

from simgpu._simulation.schedules import reports
from simgpu._simulation.schedules.locks import PYTHONS, is_free, take
from simgpu._simulation.schedules.tasks import calling_task

_stock_wait = threading.Condition.wait
_stock_enter = threading.Condition.__enter__
_stock_is_set = threading.Event.is_set
_RealQueue = queue.SimpleQueue


def enter(self: Any) -> Any:
    """`with condition:`, whose lock may be older than the schedule."""
    me = calling_task()
    if me is None or not isinstance(self._lock, PYTHONS):
        return _stock_enter(self)
    return take(me, self._lock)


def wait(self: Any, timeout: float | None = None) -> bool:
    """`Condition.wait`, also of conditions that are older than the schedule."""
    me = calling_task()
    if me is None:
        return _stock_wait(self, timeout)
    if not self._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    waiter = _thread.allocate_lock()  # which the stock `notify` releases
    waiter.acquire()
    self._waiters.append(waiter)
    saved = self._release_save()
    notified = False
    try:
        notified = bool(
            me.scheduler.block(
                lambda: not waiter.locked(), timeout, "condition", self, reports.outsiders
            )
        )
        return notified
    finally:
        try:
            if isinstance(self._lock, PYTHONS) and not me.scheduler.over:
                while not is_free(self._lock):
                    me.scheduler.block(
                        lambda: is_free(self._lock), None, "lock", None, reports.outsiders
                    )
        finally:  # whoever is ended in here gives the lock back, and so has to have it
            if not isinstance(self._lock, PYTHONS) or is_free(self._lock):
                self._acquire_restore(saved)
        if not notified and waiter in self._waiters:
            self._waiters.remove(waiter)


def is_set(self: threading.Event) -> bool:
    """`Event.is_set`: a point, or who asks again and again would keep all others from going on."""
    me = calling_task()
    if me is not None and not me.scheduler.over:
        asks_again = me.what == "event" and me.on is self
        yielding = me.scheduler.real_time and asks_again and not _stock_is_set(self)
        me.scheduler.point("event", self, yielding=yielding)
    return _stock_is_set(self)


class SimpleQueue:
    """`queue.SimpleQueue`, around one of Python's."""

    __slots__ = ("__weakref__", "_queue")
    __class_getitem__: Any = classmethod(GenericAlias)

    def __init__(self) -> None:
        self._queue: Any = _RealQueue()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._queue.put(item)  # no point, as it may be called while an object is deleted

    def put_nowait(self, item: Any) -> None:
        self.put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        me = calling_task()
        if me is None or (timeout is not None and timeout < 0):
            return self._queue.get(block, timeout)
        scheduler = me.scheduler
        if not scheduler.real_time:
            scheduler.point("queue.get", self)
        deadline = None if timeout is None else scheduler.now + timeout
        while True:
            try:
                return self._queue.get(False)
            except queue.Empty:
                if not block:
                    raise
            left = None if deadline is None else deadline - scheduler.now
            if not scheduler.block(
                lambda: not self._queue.empty(), left, "queue.get", self, reports.outsiders
            ):
                raise queue.Empty

    def get_nowait(self) -> Any:
        return self.get(False)

    def empty(self) -> bool:
        return bool(self._queue.empty())

    def qsize(self) -> int:
        return int(self._queue.qsize())
