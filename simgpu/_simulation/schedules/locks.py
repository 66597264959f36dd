"""`threading.Lock` and `RLock` of a schedule: waiting for one is the schedule's decision.

Each holds a lock of Python and is one to threads of no schedule, so it may outlive its schedule,
and threads from elsewhere may share it. simgpu's own files get Python's locks: nothing in them is
a matter of scheduling.
"""

from __future__ import annotations

import _thread
import sys
from types import TracebackType
from typing import Any

from simgpu._simulation.schedules import reports
from simgpu._simulation.schedules.tasks import Task, calling_task

_new_lock, _new_rlock = _thread.allocate_lock, _thread.RLock
PYTHONS = (_thread.LockType, _thread.RLock)


def is_free(lock: Any) -> bool:
    """Whether one of Python's locks could be taken by another thread than the calling one."""
    if isinstance(lock, _thread.LockType):
        return not lock.locked()
    if lock._is_owned() or not lock.acquire(False):
        return False
    lock.release()
    return True


def take(
    me: Task, lock: Any, blocking: bool = True, timeout: float = -1, owner: Any = None
) -> bool:
    """Acquire one of Python's locks in a thread of a schedule, as `lock.acquire` does."""
    if timeout != -1 and (timeout < 0 or not blocking):
        return bool(lock.acquire(blocking, timeout))  # which raises what Python raises
    scheduler = me.scheduler
    if (
        not scheduler.over and not scheduler.real_time
    ):  # a thread that ends may still unwind, and take what is free
        scheduler.point("lock", owner)
    deadline = None if timeout == -1 else scheduler.now + timeout
    while not lock.acquire(False):
        if not blocking:
            return False
        left = None if deadline is None else deadline - scheduler.now
        if not scheduler.block(lambda: is_free(lock), left, "lock", owner, reports.outsiders):
            return False
    return True


class Lock:
    """`threading.Lock`; `held_by` is the task that took it, if it was one."""

    __slots__ = ("__weakref__", "_lock", "held_by")

    def __new__(cls) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("simgpu."):
            return _new_lock() if cls is Lock else _new_rlock()
        return super().__new__(cls)

    def __init__(self) -> None:
        self._lock: Any = _new_lock()
        self.held_by: Task | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = calling_task()
        if me is None:
            return bool(self._lock.acquire(blocking, timeout))
        taken = take(me, self._lock, blocking, timeout, self)
        if taken:
            self.held_by = me
        return taken

    def release(self) -> None:
        self.held_by = None
        self._lock.release()

    def locked(self) -> bool:
        return bool(self._lock.locked())

    def _is_owned(self) -> bool:  # what threading.Condition asks: whether anyone has it
        return bool(self._lock.locked())

    acquire_lock, release_lock, locked_lock = acquire, release, locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        me = None if exc_type is None else calling_task()
        if me is not None and me.scheduler.over and self.held_by is not me:
            return  # its thread was ended while it waited in there to have the lock again
        self.release()

    def _at_fork_reinit(self) -> None:
        self.held_by = None
        self._lock._at_fork_reinit()

    def __repr__(self) -> str:
        return f"<scheduled {self._lock!r}>"


def around(lock: Any) -> Any:
    """A lock of Python's that is older than the schedule, with the schedule's rules; still one."""
    kind: Any = Lock if isinstance(lock, _thread.LockType) else RLock
    outer = object.__new__(kind)
    outer._lock, outer.held_by = lock, None
    return outer


class RLock(Lock):
    """`threading.RLock`."""

    __slots__ = ()

    def __init__(self) -> None:
        self._lock = _new_rlock()
        self.held_by = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = calling_task()
        if me is None or self._lock._is_owned():  # once more by the same: nobody waits
            return bool(self._lock.acquire(blocking, timeout))
        return super().acquire(blocking, timeout)

    __enter__ = acquire

    def release(self) -> None:
        self._lock.release()
        if not self._lock._is_owned():
            self.held_by = None

    def locked(self) -> bool:
        return self._lock._is_owned() or not is_free(self._lock)

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def _release_save(self) -> Any:
        self.held_by = None
        return self._lock._release_save()

    def _acquire_restore(self, state: Any) -> None:
        if calling_task() is not None:  # taken once by the rules, given back, taken as before
            self.acquire()
            self._lock.release()
        self._lock._acquire_restore(state)

    def _recursion_count(self) -> int:
        return int(self._lock._recursion_count())
