"""Locks, queues, threads and waits of Python that a schedule replaces, to decide who runs next."""

from __future__ import annotations

import _thread
import concurrent.futures.thread as pools
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import CellType, CodeType, FunctionType, GenericAlias, MethodType, ModuleType
from typing import Any, NamedTuple

from simgpu._core.clock import Clock
from simgpu._explore.schedules.scheduler import TICK, Scheduler, current
from simgpu._explore.schedules.tasks import Task, calling_task, outside
from simgpu._util.frames import calling_module, is_own
from simgpu._util.patching import Patches, Table

# `threading.Lock` and `RLock` of a schedule: waiting for one is the schedule's decision.
#
# Each holds a lock of Python and is one to threads of no schedule, so it may outlive its schedule,
# and threads from elsewhere may share it. simgpu's own files get Python's locks: nothing in them is
# a matter of scheduling.

_LOCKS = "the schedule decides which thread gets a lock"
_WAITS = "the schedule decides when a thread waits, also in what is built on these"
_THREADS = "a thread started by a thread of the schedule belongs to the schedule"
_NAMES = "the names of threads must not depend on how many there were before"
_TIME = "the schedule decides when time passes"
_ADDRESSES = "the order of a set's elements must not depend on addresses"

# What a thread waits for. Ranks without a schedule have these only, and wait in real time.
WAITS = Table()
_REST = Table()

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
    # A thread that ends may still unwind, and take what is free.
    if not (scheduler.over or scheduler.real_time):
        scheduler.point("lock", owner)
    deadline = None if timeout == -1 else scheduler.now + timeout
    while not lock.acquire(False):
        if not blocking:
            return False
        left = None if deadline is None else deadline - scheduler.now
        if not scheduler.block_for_any(lambda: is_free(lock), left, "lock", owner):
            return False
    return True


@WAITS.replace("threading.Lock", "threading._allocate_lock", "_thread.allocate_lock", why=_LOCKS)
class Lock:
    """`threading.Lock`; `held_by` is the task that took it, if it was one."""

    __slots__ = ("__weakref__", "_lock", "held_by")
    _stock: Callable[[], Any] = _thread.allocate_lock

    def __new__(cls) -> Any:
        return cls._stock() if is_own(calling_module()) else super().__new__(cls)

    def __init__(self) -> None:
        self._lock = type(self)._stock()
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

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        me = None if exc_type is None else calling_task()
        if me is not None and me.scheduler.over and self.held_by is not me:
            return  # its thread was ended while it waited in there to have the lock again
        self.release()

    def _at_fork_reinit(self) -> None:
        self.held_by = None
        self._lock._at_fork_reinit()

    def __repr__(self) -> str:
        return f"<scheduled {self._lock!r}>"


@WAITS.wrap("concurrent.futures.thread._global_shutdown_lock", why=_LOCKS)
def around(lock: Any) -> Any:
    """A lock of Python's that is older than the schedule, with the schedule's rules; still one."""
    kind: Any = Lock if isinstance(lock, _thread.LockType) else RLock
    outer = object.__new__(kind)
    outer._lock, outer.held_by = lock, None
    return outer


@WAITS.replace("threading.RLock", why=_LOCKS)
class RLock(Lock):
    __slots__ = ()
    _stock: Callable[[], Any] = _thread.RLock

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = calling_task()
        if me is None or self._lock._is_owned():  # once more by the same: no wait is needed
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


# Threads and time in a schedule: start, join, sleep, interrupts, and the clock.

_stock_start, _stock_join = threading.Thread.start, threading.Thread.join
_stock_interrupt = _thread.interrupt_main
_stock_pool = pools.ThreadPoolExecutor.__init__
_stock_hash = Future.__hash__
_sleep = time.sleep
EPOCH = 1_700_000_000.0  # what time.time() says at the beginning of every schedule

# Of the standard library: they wait for other processes, or for sockets, which takes real time.
PROCESSES = "multiprocessing."
_REAL_TIME = (PROCESSES, "asyncio.", "subprocess", "selectors", "socket")


@_REST.replace("threading.Thread.start", why=_THREADS)
def start(self: threading.Thread) -> None:
    """`Thread.start`: a thread that one of the schedule starts belongs to it."""
    me = calling_task()
    if me is None:
        _stock_start(self)
    elif calling_module().startswith(PROCESSES):
        with outside(me):
            _stock_start(self)
    else:
        me.scheduler.start(self, _stock_start)


@_REST.wrap(
    "threading._counter", "concurrent.futures.thread.ThreadPoolExecutor._counter", why=_NAMES
)
def new_counter(stock: Callable[[], int]) -> Callable[[], int]:
    """What numbers the names of threads, from the beginning, for those of the schedule."""
    numbers = itertools.count(1)

    def number(*_: Any) -> int:  # called as a method, too
        return stock() if calling_task() is None else next(numbers)

    return number


def _task_of(thread: threading.Thread, scheduler: Scheduler) -> Task | None:
    return next((task for task in scheduler.tasks if task.find_thread() is thread), None)


@WAITS.replace("threading.Thread.join", why=_THREADS)
def join(self: threading.Thread, timeout: float | None = None) -> None:
    me = calling_task()
    task = None if me is None else _task_of(self, me.scheduler)
    if me is not None and me.scheduler.real_time and self.is_alive() and task is not me:
        me.scheduler.block_for_any(lambda: not self.is_alive(), timeout, "thread", self)
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


@WAITS.replace("time.sleep", why=_TIME)
def sleep(seconds: float) -> None:
    """`time.sleep`: others go on meanwhile. It takes no time but in a scheduler of real time."""
    me = calling_task()
    if me is None or seconds < 0:
        _sleep(seconds)
    elif seconds == 0:
        me.scheduler.point("sleep", yielding=True)
    else:
        me.scheduler.block(lambda: False, seconds, "sleep", others=lambda: False)


@_REST.replace("_thread.interrupt_main", why=_THREADS)
def interrupt_main(*args: Any) -> None:
    """`_thread.interrupt_main`: KeyboardInterrupt in the thread that entered the schedule."""
    me = calling_task()
    if me is None or args:
        _stock_interrupt(*args)
    else:
        me.scheduler.interrupt()


def clock_of_schedule(stock: Callable[[], Any], epoch: float = 0.0) -> Callable[[], Any]:
    """A function of `time` that returns the schedule's time to its threads."""
    nanoseconds = stock.__name__.endswith("_ns")

    def now() -> Any:
        me = calling_task()
        if me is None or calling_module().startswith(_REAL_TIME):
            return stock()
        me.scheduler.now += TICK / 10  # a loop that looks at nothing but the clock comes to an end
        now = epoch + me.scheduler.now
        return int(now * 1e9) if nanoseconds else now

    now.__name__ = stock.__name__
    return now


for _paths, _clock, _epoch in (
    (("time.monotonic", "threading._time", "queue.time"), time.monotonic, 0.0),
    (("time.monotonic_ns",), time.monotonic_ns, 0.0),
    (("time.perf_counter",), time.perf_counter, 0.0),
    (("time.perf_counter_ns",), time.perf_counter_ns, 0.0),
    (("time.time",), time.time, EPOCH),
    (("time.time_ns",), time.time_ns, EPOCH),
):
    _REST.add(*_paths, value=clock_of_schedule(_clock, _epoch), why=_TIME)


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


@_REST.replace("concurrent.futures.thread.ThreadPoolExecutor.__init__", why=_ADDRESSES)
def new_pool(self: Any, *args: Any, **kwargs: Any) -> None:
    """`ThreadPoolExecutor.__init__`: its threads are joined in the order of their start."""
    _stock_pool(self, *args, **kwargs)
    if calling_task() is not None:
        self._threads = _InOrder(self._threads)


@_REST.replace("concurrent.futures.Future.__hash__", why=_ADDRESSES)
def hash_of_future(self: Future[Any]) -> int:
    """`Future.__hash__`: by number and not by address, so that sets of them keep their order."""
    me = calling_task()
    if "_simgpu_number" not in self.__dict__:
        if me is None:
            return _stock_hash(self)
        self._simgpu_number = next(me.scheduler.numbers)  # type: ignore[attr-defined]
    return int(self._simgpu_number)  # type: ignore[attr-defined]


@_REST.replace("concurrent.futures._base._AcquireFutures.__init__", why=_ADDRESSES)
def acquire_futures(self: Any, futures: Iterable[Future[Any]]) -> None:
    """`_AcquireFutures.__init__`: their locks are taken in the order of their numbers."""
    self.futures = sorted(futures, key=hash)


# `threading.Condition` and `queue.SimpleQueue` of a schedule, and with them all that waits.
#
# Events, barriers, semaphores, timers, queues and futures are Python code over these two and locks.

_stock_wait = threading.Condition.wait
_stock_enter = threading.Condition.__enter__
_stock_is_set = threading.Event.is_set
_RealQueue = queue.SimpleQueue


@WAITS.replace("threading.Condition.__enter__", why=_WAITS)
def enter(self: Any) -> Any:
    """`with condition:`, whose lock may be older than the schedule."""
    me = calling_task()
    if me is None or not isinstance(self._lock, PYTHONS):
        return _stock_enter(self)
    return take(me, self._lock)


@WAITS.replace("threading.Condition.wait", why=_WAITS)
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
    block: Callable[..., bool] = me.scheduler.block_for_any
    notified = False
    try:
        notified = block(lambda: not waiter.locked(), timeout, "condition", self)
        return notified
    finally:
        try:
            if isinstance(self._lock, PYTHONS) and not me.scheduler.over:
                while not is_free(self._lock):
                    block(lambda: is_free(self._lock), None, "lock", None)
        finally:  # a thread that is ended in here releases the lock, and so has to hold it
            if not isinstance(self._lock, PYTHONS) or is_free(self._lock):
                self._acquire_restore(saved)
        if not notified and waiter in self._waiters:
            self._waiters.remove(waiter)


@WAITS.replace("threading.Event.is_set", why=_WAITS)
def is_set(self: threading.Event) -> bool:
    """`Event.is_set`: a point, or who asks again and again would keep all others from going on."""
    me = calling_task()
    if me is not None and not me.scheduler.over:
        asks_again = me.what == "event" and me.on is self
        yielding = me.scheduler.real_time and asks_again and not _stock_is_set(self)
        me.scheduler.point("event", self, yielding=yielding)
    return _stock_is_set(self)


@WAITS.replace("queue.SimpleQueue", why=_WAITS)
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
            if not scheduler.block_for_any(
                lambda: not self._queue.empty(), left, "queue.get", self
            ):
                raise queue.Empty

    def get_nowait(self) -> Any:
        return self.get(False)

    def empty(self) -> bool:
        return bool(self._queue.empty())

    def qsize(self) -> int:
        return int(self._queue.qsize())


@WAITS.action("`sleep` in modules that have imported it from `time`", why=_TIME)
def _replace_copies_of_sleep(patches: Patches) -> None:
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("sleep") is _sleep:
            patches.set(module, "sleep", sleep)


@WAITS.action("the idle threads of dataparallel", why=_THREADS)
def _use_other_threads(patches: Patches) -> None:
    """Make `dataparallel`, where it is imported, keep other threads until the patches are undone.

    Those that it has would run when they like, and those that it starts now end with the schedule.
    """

    def exchange(pool: Any) -> Any:
        module = sys.modules.get("dataparallel._threads.worker_pool")
        return None if module is None else module.exchange_pool(pool)

    patches.then(partial(exchange, exchange(None)))


PATCHES = [*WAITS, *_REST]


# Make locks that are older than a schedule follow it, where its program names them.
#
# Such a lock is replaced where a function finds it (a global name, a variable around it, an
# attribute, an entry of a list or dictionary) by one with the schedule's rules around it. Both are
# taken and free at the same time.
#
# Ranks also wait for those of libraries: the globals of all modules and the attributes of their
# classes are looked at, each module once. Such as the lock of torch.compile, which a rank has while
# it waits for processes that compile.

_DEPTH = 5
_INSTALLED = ("site-packages", "dist-packages", str(Path(threading.__file__).parent))


class _Place(NamedTuple):
    """Where a lock may be: how to read what is there, and how to write it."""

    stock_read: Callable[[], Any]
    write: Callable[[Any], object]

    def read(self) -> Any:
        try:
            return self.stock_read()
        except (LookupError, ValueError):  # the name of another scope, or a variable not yet set
            return None


def _attribute_place(owner: Any, name: str) -> _Place:
    return _Place(lambda: vars(owner).get(name), partial(setattr, owner, name))


def _entry_place(holder: Any, key: Any) -> _Place:
    return _Place(lambda: holder[key], partial(holder.__setitem__, key))


@contextmanager
def _adopted(places: Iterable[_Place]) -> Iterator[None]:
    """Within the block, the locks of Python's in these places follow the schedule."""
    replaced: list[tuple[_Place, Any, Any]] = []
    for place in places:
        lock = place.read()
        if isinstance(lock, PYTHONS):
            ours = around(lock)
            place.write(ours)
            replaced.append((place, lock, ours))
    try:
        yield
    finally:
        for place, lock, ours in reversed(replaced):
            if place.read() is ours:  # and the program has put nothing else there
                place.write(lock)


def schedule_existing_locks(*roots: Any) -> AbstractContextManager[None]:
    """Within the block, the locks that these functions and objects name follow the schedule."""
    seen: set[int] = set()
    return _adopted(place for root in roots for place in _places_in(root, seen, _DEPTH))


_looked_at: dict[str, ModuleType] = {}
_of_modules: list[_Place] = []
# No thread waits while it has one of these; and logging has locks of its handlers besides, which
# are not found here and are taken before and after its own.
_LEFT_OUT = ("threading", "simgpu", "logging")


def adopted_in_modules() -> AbstractContextManager[None]:
    """Within the block, locks that modules and their classes have follow the schedule."""
    for name, module in list(sys.modules.items()):
        if _looked_at.get(name) is not module and name.partition(".")[0] not in _LEFT_OUT:
            if getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue
            _looked_at[name] = module
            _of_modules.extend(_attribute_place(*found) for found in _locks_of(name, module))
    return _adopted(_of_modules)


def _locks_of(name: str, module: Any) -> Iterator[tuple[Any, str]]:
    kinds = set(PYTHONS)  # by type(), since a proxy would load what it replaces
    for key, value in list(getattr(module, "__dict__", {}).items()):
        if type(value) in kinds:
            yield module, key
        elif issubclass(type(value), type) and vars(value).get("__module__") == name:
            yield from ((value, key) for key, lock in vars(value).items() if type(lock) in kinds)


def _places_in(thing: Any, seen: set[int], depth: int) -> Iterator[_Place]:
    """Yield the variables, items and attributes below `thing` that may hold a lock."""
    if depth == 0 or id(thing) in seen:
        return
    seen.add(id(thing))
    parts: Iterable[Any] = ()
    if isinstance(thing, CellType):
        variable = _Place(lambda: thing.cell_contents, partial(setattr, thing, "cell_contents"))
        yield from _within(variable, seen, depth - 1)
    elif isinstance(thing, FunctionType):
        for name in _global_names(thing.__code__):
            yield from _within(_entry_place(thing.__globals__, name), seen, depth - 1)
        parts = (*(thing.__closure__ or ()), getattr(thing, "__wrapped__", None))
    elif isinstance(thing, MethodType):
        parts = thing.__func__, thing.__self__
    elif isinstance(thing, partial):
        parts = (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, (dict, list)):
        for key in list(thing) if isinstance(thing, dict) else range(len(thing)):
            yield from _within(_entry_place(thing, key), seen, depth - 2)
    elif isinstance(thing, tuple):
        parts, depth = thing, depth - 1
    elif _is_of_the_program(thing):
        for name in list(vars(thing)):
            yield from _within(_entry_place(vars(thing), name), seen, depth - 2)
        parts, depth = vars(type(thing)).values(), depth - 1
    for part in parts:
        yield from _places_in(part, seen, depth)


def _within(place: _Place, seen: set[int], depth: int) -> Iterator[_Place]:
    """The place itself, where a lock is in it; else those that what is in it leads to."""
    value = place.read()
    if isinstance(value, PYTHONS):
        yield place
    else:
        yield from _places_in(value, seen, depth)


def _global_names(code: CodeType) -> list[str]:
    """The global names that a function mentions, and those of functions within it."""
    inner = [
        name
        for part in code.co_consts
        if isinstance(part, CodeType)
        for name in _global_names(part)
    ]
    return [*code.co_names, *inner]


def _is_of_the_program(thing: Any) -> bool:
    """Whether to look into the attributes of an object: one of a class of the program's own."""
    if isinstance(thing, (type, ModuleType)) or not isinstance(getattr(thing, "__dict__", 0), dict):
        return False
    module = sys.modules.get(type(thing).__module__)
    file = getattr(module, "__file__", None)
    return file is not None and not any(folder in file for folder in _INSTALLED)
