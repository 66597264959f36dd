"""One CPU for the threads of a schedule, of which one runs at a time.

To wake a thread up on another CPU takes several times as long as on the same one. And a thread
that has been woken up there is not to take the CPU from the one that gives it the baton before
that one waits for its own: such a batch thread (`SCHED_BATCH`) does not.

All that is for a machine with idle CPUs. What computes in several threads keeps its CPUs: where
torch has more than one thread for a kernel, nothing is bound to a CPU. Processes that are started
in the block may use all CPUs at once, and threads that outlive it, or that others than Python have
started, from its end on.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

_TASKS = Path("/proc/self/task")
_CPU_FIELD = 36  # of /proc/thread-self/stat, counted from the end of the name
_stock_cpus = getattr(os, "sched_getaffinity", None)

_sharing: _Sharing | None = None


class _Sharing:
    """The threads of the process while some share one CPU, and how all of them were before."""

    def __init__(self, cpus: set[int], cpu: int | None) -> None:
        self.cpus, self.one = cpus, cpus if cpu is None else {cpu}
        self._others = {thread for thread in _threads() if _is_batch(thread)}

    def share(self) -> None:
        """The calling thread, and what it starts."""
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if self.one != self.cpus:
            os.sched_setaffinity(0, self.one)

    def leave(self, thread: int = 0) -> bool:
        """Make a thread of ours be as it was; false where it is none, or has ended."""
        with suppress(OSError):
            if not _is_batch(thread):
                return False
            if self.one != self.cpus and _stock_cpus(thread) == self.one:  # type: ignore[misc]
                os.sched_setaffinity(thread, self.cpus)
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
            return True
        return False

    def end(self) -> None:
        """All threads of ours."""
        for thread in _threads() - self._others:
            self.leave(thread)


def _threads() -> set[int]:
    """Those of the process, by their numbers in the system."""
    return set(map(int, os.listdir(_TASKS)))


def _is_batch(thread: int) -> bool:
    with suppress(ProcessLookupError):  # it has ended since it was listed
        return os.sched_getscheduler(thread) == os.SCHED_BATCH
    return False


def _leave_for_good() -> None:
    """In a forked child, which is no part of the schedule."""
    global _sharing
    if _sharing is not None:
        _sharing.leave()
        _sharing = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_for_good)


@contextmanager
def one_cpu() -> Iterator[None]:
    """Within the block the calling thread and those that it starts have one CPU, where they can."""
    global _sharing
    with suppress(OSError, AttributeError):  # a system without all this, or one that forbids it
        if os.sched_getscheduler(0) == os.SCHED_OTHER and _is_a_cpu_idle():
            several = torch.get_num_threads() > 1  # asked on all CPUs: the first answer is kept
            _sharing = _Sharing(os.sched_getaffinity(0), None if several else _cpu())
            _sharing.share()
    try:
        yield
    finally:
        if _sharing is not None:
            _sharing.end()
            _sharing = None


def _is_a_cpu_idle() -> bool:
    """Whether fewer threads of the machine want to run than there are CPUs.

    Where all are busy, the system leaves threads where they are by itself, and those that are bound
    to a CPU have a smaller share of it.
    """
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return running < len(os.sched_getaffinity(0))


def _cpu() -> int:
    """The CPU that the calling thread is on."""
    words = Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()
    return int(words[_CPU_FIELD])


def on_all_cpus(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A function that starts a process, which is as if there were no schedule."""

    @functools.wraps(stock)
    def start(*args: Any, **kwargs: Any) -> Any:
        sharing = _sharing
        if sharing is None or not sharing.leave():
            return stock(*args, **kwargs)
        try:
            return stock(*args, **kwargs)
        finally:
            sharing.share()

    return start


def all_cpus(stock: Callable[[int], set[int]]) -> Callable[[int], set[int]]:
    """`os.sched_getaffinity`, to which a thread has the CPUs that it will have again."""

    def cpus(pid: int, /) -> set[int]:
        found = stock(pid)
        if _sharing is None or found != _sharing.one or pid not in (0, os.getpid()):
            return found
        return set(_sharing.cpus)

    return cpus
