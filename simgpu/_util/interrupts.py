"""Ctrl-C: calls that it cannot cut in half, waits until it may come, the end of a campaign.

CPython runs the handler of a signal in the main thread where a Python function begins, where a call
returns and where a loop starts over, and nowhere else. So it does not come between two statements
that do nothing of that kind, nor within a function of C. The handler of Ctrl-C raises there. C++
that calls a Python function must not come back with an error that it does not expect, and an error
that is raised while an object dies is lost: what runs then is made of functions of C.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class CallAtEnd(functools.partial[None]):
    """A call that is made when the object dies, all of it in C: no handler of a signal runs."""

    __slots__ = ()
    __del__ = functools.partial.__call__


@contextlib.contextmanager
def one_interrupt() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` for the first SIGINT, SIGTERM or SIGHUP: a report follows.

    No other raises it. Also where SIGINT was ignored, as a shell's scripts have it for what they
    start with ``&``; but not SIGHUP, that of a terminal which is closed, where ``nohup`` has it
    ignored.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        numbers.append(hangup)

    def stop(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler or signal.SIG_DFL)


# Ctrl-C that waits until the main thread may be interrupted, as in a schedule.


@contextmanager
def interrupts_wait(
    has_to_wait: Callable[[], bool], interrupt: Callable[[], None]
) -> Iterator[None]:
    """Call `interrupt` instead of the handler of Ctrl-C within the block, where `has_to_wait()`.

    A schedule has to wait while another of its threads runs: raised at once, Ctrl-C would make two
    threads run at a time.
    """
    outer = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(outer):
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if has_to_wait():
            interrupt()
        else:
            outer(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, outer)
