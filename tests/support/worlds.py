"""How many worlds of ranks a property tries, and the seeds of their schedules."""

from hypothesis import settings
from hypothesis import strategies as st

# A world is long for an example: many threads, and many calls that each of them waits for.
few = settings(max_examples=-(-settings().max_examples // 10))

# One rank after the other, or in the order of a seed.
schedules = st.none() | st.integers(0, 99)
