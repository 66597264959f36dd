"""Ctrl-C that waits until the main thread may be interrupted, as in a schedule."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_wait(
    has_to_wait: Callable[[], bool], interrupt: Callable[[], None]
) -> Iterator[None]:
    """Call `interrupt` instead of the handler of Ctrl-C within the block, where `has_to_wait()`.

    A schedule has to wait while another of its threads runs: raised at once, Ctrl-C would let two
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
