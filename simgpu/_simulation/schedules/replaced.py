"""The table of what `simgpu.schedule` replaces for the length of its block."""

from __future__ import annotations

import sys
import threading
import time

from simgpu._patches import Action, Patch, Patches, Row
from simgpu._simulation.schedules import locks, one_cpu, threads, waiting

_LOCKS = "waiting for a lock is the schedule's decision"
_WAITS = "waiting is the schedule's decision; what is built on these follows"
_THREADS = "threads that a thread of the schedule starts belong to it"
_NAMES = "the names of threads must not depend on how many there were before"
_TIME = "time goes by where the schedule says so"
_CPUS = "the one CPU of the schedule's threads is no matter of the program or its processes"
_ADDRESSES = "the order in which a set is gone through must not depend on addresses"

_stock_sleep = time.sleep


def _replace_copies_of_sleep(patches: Patches) -> None:
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("sleep") is _stock_sleep:
            patches.set(module, "sleep", threads.sleep)


# What a thread waits for. Ranks without a schedule have these only, and wait in real time.
WAITS: tuple[Row, ...] = (
    Patch("threading", "Lock", locks.Lock, why=_LOCKS),
    Patch("threading", "_allocate_lock", locks.Lock, why=_LOCKS),
    Patch("_thread", "allocate_lock", locks.Lock, why=_LOCKS),
    Patch("threading", "RLock", locks.RLock, why=_LOCKS),
    Patch("concurrent.futures.thread", "_global_shutdown_lock", wrap=locks.around, why=_LOCKS),
    Patch("threading.Condition", "__enter__", waiting.enter, why=_WAITS),
    Patch("threading.Condition", "wait", waiting.wait, why=_WAITS),
    Patch("threading.Event", "is_set", waiting.is_set, why=_WAITS),
    Patch("queue", "SimpleQueue", waiting.SimpleQueue, why=_WAITS),
    Patch("threading.Thread", "join", threads.join, why=_THREADS),
    Patch("time", "sleep", threads.sleep, why=_TIME),
    Action(
        "`sleep` in modules that have imported it from `time`",
        run=_replace_copies_of_sleep,
        why=_TIME,
    ),
)

PATCHES: tuple[Row, ...] = (
    *WAITS,
    Patch("threading.Thread", "start", wrap=threads.new_start, why=_THREADS),
    Patch("threading", "_counter", wrap=threads.new_counter, why=_NAMES),
    Patch(
        "concurrent.futures.thread.ThreadPoolExecutor",
        "_counter",
        wrap=threads.new_counter,
        why=_NAMES,
    ),
    Patch("_thread", "interrupt_main", threads.interrupt_main, why=_THREADS),
    *(
        Patch("time", stock.__name__, threads.telling(stock), why=_TIME)
        for stock in (
            time.monotonic,
            time.monotonic_ns,
            time.perf_counter,
            time.perf_counter_ns,
        )
    ),
    Patch("time", "time", threads.telling(time.time, threads.EPOCH), why=_TIME),
    Patch("time", "time_ns", threads.telling(time.time_ns, threads.EPOCH), why=_TIME),
    Patch("threading", "_time", threads.telling(time.monotonic), why=_TIME),
    Patch("queue", "time", threads.telling(time.monotonic), why=_TIME),
    Patch(
        "os",
        "sched_getaffinity",
        wrap=one_cpu.all_cpus,
        needs="sched_getaffinity",
        why=_CPUS,
    ),
    *(
        Patch(owner, name, wrap=one_cpu.on_all_cpus, needs=name, why=_CPUS)
        for owner, name in (
            ("subprocess.Popen", "__init__"),
            ("multiprocessing.util", "spawnv_passfds"),
            ("os", "posix_spawn"),
            ("os", "posix_spawnp"),
            ("os", "system"),
        )
    ),
    Patch(
        "concurrent.futures.thread.ThreadPoolExecutor",
        "__init__",
        threads.new_pool,
        why=_ADDRESSES,
    ),
    Patch("concurrent.futures.Future", "__hash__", threads.hash_of_future, why=_ADDRESSES),
    Patch(
        "concurrent.futures._base._AcquireFutures",
        "__init__",
        threads.acquire_futures,
        why=_ADDRESSES,
    ),
)

assert threading  # imported for the owners above
