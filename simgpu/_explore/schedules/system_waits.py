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
from multiprocessing.process import BaseProcess
from typing import Any

from simgpu._explore.schedules.primitives import PROCESSES
from simgpu._explore.schedules.scheduler import calling_task, outside
from simgpu._util.frames import calling_module
from simgpu._util.patching import Patch, Row

_stock_poll: Any = getattr(select, "poll", None)
_stock_select: Any = select.select
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


def _wait(stock: Callable[..., int]) -> Callable[..., int]:
    """`subprocess.Popen.wait`."""

    @functools.wraps(stock)
    def wait(self: subprocess.Popen[Any], timeout: float | None = None) -> int:
        ended = not _waits_in_real_time() or _until(
            lambda: self.poll() is not None, timeout, "process", self
        )
        if not ended and timeout is not None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return stock(self, timeout)

    return wait


def _communicate(stock: Callable[..., Any]) -> Callable[..., Any]:
    """`subprocess.Popen.communicate` with a long time-out, where the program gives none.

    Without one it may block in a read, of which the schedule would not know.
    """

    @functools.wraps(stock)
    def communicate(
        self: subprocess.Popen[Any], input: Any = None, timeout: float | None = None
    ) -> Any:
        if timeout is None and _waits_in_real_time():
            timeout = _LONG
        return stock(self, input, timeout)

    return communicate


def _start(stock: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """`threading.Thread.start`, which waits for the new thread to begin."""

    @functools.wraps(stock)
    def start(self: threading.Thread) -> None:
        me = calling_task()
        if me is None:
            stock(self)
        else:
            with outside(me):
                stock(self)

    return start


def _join(stock: Callable[..., None]) -> Callable[..., None]:
    """`multiprocessing.Process.join`."""

    @functools.wraps(stock)
    def join(self: BaseProcess, timeout: float | None = None) -> None:
        if _waits_in_real_time() and self.ident is not None:
            _until(lambda: not self.is_alive(), timeout, "process", self)
            timeout = None if timeout is None else 0
        stock(self, timeout)

    return join


def _selecting(stock: Callable[..., Any]) -> Callable[..., Any]:
    """`select` of a selector."""

    @functools.wraps(stock)
    def select(self: Any, timeout: float | None = None) -> Any:
        of_processes = calling_module().startswith(PROCESSES)
        waits = timeout is None or timeout > 0
        if waits and not of_processes and _waits_in_real_time():
            _until(lambda: bool(stock(self, 0)), timeout, "socket", self)
            timeout = 0
        return stock(self, timeout)

    return select


def _select(*args: Any) -> Any:
    """`select.select`."""
    timeout = args[3] if len(args) > 3 else None
    if (timeout is None or timeout > 0) and _waits_in_real_time():
        _until(lambda: any(_stock_select(*args[:3], 0)), timeout, "socket", None)
        args = (*args[:3], 0)
    return _stock_select(*args)


def _can_be_read(of: socket.socket) -> bool:
    """Whether a read would not wait, or has something to raise."""
    if of.fileno() < 0:
        return True
    poll = _stock_poll()
    poll.register(of, select.POLLIN)
    return bool(poll.poll(0))


def _reading(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A method of socket that waits until there is something to read."""

    @functools.wraps(stock)
    def read(self: socket.socket, *args: Any, **kwargs: Any) -> Any:
        if _waits_in_real_time():
            seconds = self.gettimeout()
            if seconds != 0 and not _until(lambda: _can_be_read(self), seconds, "socket", self):
                raise TimeoutError("timed out")
        return stock(self, *args, **kwargs)

    return read


def _flock(stock: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """`fcntl.flock`: a thread may hold the lock and wait for its turn."""
    asks, gives_back = fcntl.LOCK_NB, fcntl.LOCK_UN

    @functools.wraps(stock)
    def flock(file: Any, operation: int) -> None:
        def taken() -> bool:
            try:
                stock(file, operation | asks)
            except BlockingIOError:
                return False
            return True

        if not operation & (asks | gives_back) and _waits_in_real_time():
            _until(taken, None, "file", None)
        stock(file, operation)  # to take it once more is nothing

    return flock


_WHY = "a rank that waits for it allows the others to go on"

PATCHES: tuple[Row, ...] = (
    Patch("subprocess.Popen", "wait", wrap=_wait, why=_WHY),
    Patch("subprocess.Popen", "communicate", wrap=_communicate, why=_WHY),
    Patch(
        "threading.Thread",
        "start",
        wrap=_start,
        why="a thread that has not begun is not found, and no other may go on before it has",
    ),
    Patch("multiprocessing.process.BaseProcess", "join", wrap=_join, why=_WHY),
    *(
        Patch(f"selectors.{kind}Selector", "select", wrap=_selecting, needs="select", why=_WHY)
        for kind in ("Select", "Poll", "Epoll", "Kqueue")
    ),
    Patch("select", "select", value=_select, why=_WHY),
    Patch("fcntl", "flock", wrap=_flock, why=_WHY),
    *(
        Patch("socket.socket", name, wrap=_reading, needs=name, why=_WHY)
        for name in ("accept", "recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg")
    ),
)
