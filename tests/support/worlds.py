"""How many worlds of ranks a property tries, the seeds of their schedules, and unbound groups."""

import functools

from hypothesis import settings
from hypothesis import strategies as st
from torch import distributed as dist

# A world is long for an example: many threads, and many calls that each of them waits for.
few = settings(max_examples=-(-settings().max_examples // 10))

# One rank after the other, or in the order of a seed.
schedules = st.none() | st.integers(0, 99)


def unbound(function):
    """What a rank does whose group has no device from the beginning, as before PyTorch 2.15."""

    @functools.wraps(function)
    def run(rank):
        dist.group.WORLD.bound_device_id = None
        return function(rank)

    return run
