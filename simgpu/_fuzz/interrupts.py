"""Ctrl-C during a campaign: the first one ends it with a report, further ones are ignored."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def one_interrupt() -> Iterator[None]:
    """Let the first SIGINT, SIGTERM or SIGHUP raise ``KeyboardInterrupt``: a report follows.

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
