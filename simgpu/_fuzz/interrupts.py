"""Ctrl-C during a campaign: the first one ends it with a report, further ones are ignored."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def one_interrupt() -> Iterator[None]:
    """Let the first SIGINT or SIGTERM raise ``KeyboardInterrupt``, and no other: a report follows.

    Also where SIGINT was ignored, as a shell's scripts have it for what they start with ``&``.
    """
    both = (signal.SIGINT, signal.SIGTERM)

    def stop(*_: object) -> None:
        for number in both:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [signal.signal(number, stop) for number in both]
    try:
        yield
    finally:
        for number, handler in zip(both, before, strict=True):
            signal.signal(number, handler or signal.SIG_DFL)
