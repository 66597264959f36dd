"""`clock.current`: what launches and events are stamped by, which `use` can replace.

It is the host's, unless what simulates time puts a clock of its own here by `use`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Clock:
    """The host's time; derive from it for another.

    `follows_devices` is true of a clock that knows by itself how long each kernel and copy takes.
    """

    follows_devices = False

    def now(self) -> float:
        """Seconds since some fixed moment; differences between two calls are what counts."""
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Wait in the calling thread until `moment`, in seconds of `now`."""
        time.sleep(max(moment - self.now(), 0))

    def passed(self, moment: float) -> bool:
        """Whether `moment` has passed: what a stream or an event is asked."""
        return moment <= self.now()

    def times_of(self, launch: Any, result: Any, begin: float) -> tuple[float, float]:
        """When a launch, which the host began to run at `begin` and has run, began and ended."""
        return begin, self.now()

    def utilization(self, device: int) -> int:
        """Percent of the last second in which a device computed; 0 by the host's time."""
        return 0


current = Clock()  # the clock in force


@contextmanager
def use(clock: Clock) -> Iterator[None]:
    """Use `clock` within the block, in all threads.

    One that follows the devices stays in force where one is put in its place that does not.
    """
    global current
    outer = current
    if clock.follows_devices or not outer.follows_devices:
        current = clock
    try:
        yield
    finally:
        current = outer
