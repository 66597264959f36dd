"""`clock.now()`: the time that launches and events are stamped with, which `use` can replace.

Today it is the host's. What simulates time puts a clock of its own here by `use`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """The host's time; derive from it to tell another."""

    def now(self) -> float:
        """Seconds since some fixed moment; differences between two calls are what counts."""
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Let the calling thread go on at `moment`, in seconds of `now`."""
        time.sleep(max(moment - self.now(), 0))


_clock = Clock()


def now() -> float:
    """Seconds, by the clock in force."""
    return _clock.now()


def wait_until(moment: float) -> None:
    """Let the calling thread go on at `moment`, by the clock in force."""
    _clock.wait_until(moment)


@contextmanager
def use(clock: Clock) -> Iterator[None]:
    """Let `clock` tell the time within the block, in all threads."""
    global _clock
    outer, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = outer
