"""Waits for processes, sockets and locks of files, where time is real: others go on meanwhile.

Under `simgpu.schedule` such a wait takes the time that it takes, and no other thread goes on. Pipes
and queues of multiprocessing are left out: they have locks in C, for which a second reader would
wait with its turn.
"""

from __future__ import annotations

import fcntl
import functools
import select
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.process import BaseProcess
from typing import Any

from simgpu._explore.schedules.primitives import PROCESSES
from simgpu._explore.schedules.tasks import calling_task, outside
from simgpu._util.frames import calling_module
from simgpu._util.patching import Table

_stock_poll: Any = getattr(select, "poll", None)
_LONG = 1e6  # seconds


def _waits_in_real_time() -> bool:
    me = calling_task()
    return me is not None and me.scheduler.real_time and not me.scheduler.over


def _until(ready: Callable[[], bool], seconds: float | None, what: str, on: Any) -> bool:
    """Make other threads go on until `ready()`; false where the time-out comes first."""

    def over() -> bool:
        try:
            return ready()
        except (OSError, ValueError):  # it was closed: raised to the thread that waits
            return True

    me = calling_task()
    return (
        me is None
        or over()
        or bool(me.scheduler.block(over, seconds, what, on, others=lambda: True))
    )


PATCHES = Table()
_WHY = "a rank that waits for it allows the others to go on"


@PATCHES.around("subprocess.Popen.wait", why=_WHY)
def _wait(
    stock: Callable[..., int], self: subprocess.Popen[Any], timeout: float | None = None
) -> int:
    ended = not _waits_in_real_time() or _until(
        lambda: self.poll() is not None, timeout, "process", self
    )
    if not ended and timeout is not None:
        raise subprocess.TimeoutExpired(self.args, timeout)
    return stock(self, timeout)


@PATCHES.around("subprocess.Popen.communicate", why=_WHY)
def _communicate(
    stock: Callable[..., Any], self: Any, input: Any = None, timeout: float | None = None
) -> Any:
    """Without a time-out it may block in a read, of which the schedule would not know."""
    if timeout is None and _waits_in_real_time():
        timeout = _LONG
    return stock(self, input, timeout)


@PATCHES.around(
    "threading.Thread.start",
    why="a thread that has not begun is not found, and no other may go on before it has",
)
def _start(stock: Callable[[threading.Thread], None], self: threading.Thread) -> None:
    """Start a thread, and wait for it to begin."""
    me = calling_task()
    with nullcontext() if me is None else outside(me):
        stock(self)


@PATCHES.around("multiprocessing.process.BaseProcess.join", why=_WHY)
def _join(stock: Callable[..., None], self: BaseProcess, timeout: float | None = None) -> None:
    if _waits_in_real_time() and self.ident is not None:
        _until(lambda: not self.is_alive(), timeout, "process", self)
        timeout = None if timeout is None else 0
    stock(self, timeout)


def _selecting(stock: Callable[..., Any]) -> Callable[..., Any]:
    """`select` of a selector; who has called it is asked of the frame above."""

    @functools.wraps(stock)
    def select(self: Any, timeout: float | None = None) -> Any:
        of_processes = calling_module().startswith(PROCESSES)
        waits = timeout is None or timeout > 0
        if waits and not of_processes and _waits_in_real_time():
            _until(lambda: bool(stock(self, 0)), timeout, "socket", self)
            timeout = 0
        return stock(self, timeout)

    return select


PATCHES.add(
    *(f"selectors.{kind}Selector.select" for kind in ("Select", "Poll", "Epoll", "Kqueue")),
    wrap=_selecting,
    optional=True,
    why=_WHY,
)


@PATCHES.around("select.select", why=_WHY)
def _select(stock: Callable[..., Any], *args: Any) -> Any:
    timeout = args[3] if len(args) > 3 else None
    if (timeout is None or timeout > 0) and _waits_in_real_time():
        _until(lambda: any(stock(*args[:3], 0)), timeout, "socket", None)
        args = (*args[:3], 0)
    return stock(*args)


def _can_be_read(of: socket.socket) -> bool:
    """Whether a read would not wait, or has something to raise."""
    if of.fileno() < 0:
        return True
    poll = _stock_poll()
    poll.register(of, select.POLLIN)
    return bool(poll.poll(0))


@PATCHES.around(
    *(
        f"socket.socket.{name}"
        for name in ("accept", "recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg")
    ),
    optional=True,
    why=_WHY,
)
def _read(stock: Callable[..., Any], self: socket.socket, *args: Any, **kwargs: Any) -> Any:
    if _waits_in_real_time():
        seconds = self.gettimeout()
        if seconds != 0 and not _until(lambda: _can_be_read(self), seconds, "socket", self):
            raise TimeoutError("timed out")
    return stock(self, *args, **kwargs)


@PATCHES.around("fcntl.flock", why=_WHY)
def _flock(stock: Callable[[Any, int], None], file: Any, operation: int) -> None:
    """A thread may hold the lock and wait for its turn."""
    asks, gives_back = fcntl.LOCK_NB, fcntl.LOCK_UN

    def taken() -> bool:
        try:
            stock(file, operation | asks)
        except BlockingIOError:
            return False
        return True

    if not operation & (asks | gives_back) and _waits_in_real_time():
        _until(taken, None, "file", None)
    stock(file, operation)  # to take it once more is nothing
