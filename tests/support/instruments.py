"""Instruments for the length of a block."""

import contextlib

from simgpu._core import hooks


@contextlib.contextmanager
def added(*those):
    """Within the block these instruments are there."""
    with contextlib.ExitStack() as stack:
        for each in those:
            hooks.add(each)
            stack.callback(hooks.remove, each)
        yield
