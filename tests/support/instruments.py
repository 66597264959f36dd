"""Instruments for the length of a block, and a clock that only waiting moves."""

import contextlib

from simgpu._core import clock, hooks


@contextlib.contextmanager
def added(*those):
    """Within the block these instruments are there."""
    with contextlib.ExitStack() as stack:
        for each in those:
            hooks.add(each)
            stack.callback(hooks.remove, each)
        yield


class StoppedClock(clock.Clock):
    """A clock that begins at 100 seconds; only waiting moves it."""

    time = 100.0

    def now(self):
        return self.time

    def wait_until(self, moment):
        self.time = max(self.time, moment)
