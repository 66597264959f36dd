"""Ctrl-C in a schedule: it waits until the thread that it is raised in has the baton."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from simgpu._simulation.schedules.tasks import Task


@contextmanager
def interrupts_wait(first: Task, interrupt: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C within the block call `interrupt` where `first` is in line for the baton.

    Raised at once, it would let two threads run at a time.
    """
    outer = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(outer):
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if first.in_line:
            interrupt()
        else:
            outer(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, outer)
