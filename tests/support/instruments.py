"""Instruments for the length of a block."""

import contextlib

from simgpu._runtime import instruments


@contextlib.contextmanager
def added(*those):
    """Within the block these instruments are there."""
    with contextlib.ExitStack() as stack:
        for each in those:
            instruments.add(each)
            stack.callback(instruments.remove, each)
        yield
