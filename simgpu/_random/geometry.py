"""How many threads a kernel of random numbers starts, and which thread fills which element.

From `calc_execution_policy` and the grid-stride loop of ATen/native/cuda/DistributionTemplates.h:
a thread per element, in blocks of 256, but no more than the GPU can hold at once. This is the only
place where the model of the GPU has a say, and only in draws of more elements than that.

Thread t, in its call number k, fills with its number i of that call the element
k * threads * unroll + i * threads + t.
"""

from __future__ import annotations

from typing import NamedTuple

BLOCK = 256  # threads
STEP = 4  # of the generator's offset, for one call of a thread


class Launch(NamedTuple):
    """How a draw is spread over threads."""

    threads: int
    calls: int  # of each thread, which gives it `unroll` numbers
    increment: int  # of the generator's offset


def resident_threads(multiprocessors: int, threads_per_multiprocessor: int) -> int:
    """How many threads, in whole blocks, a GPU holds at once."""
    return multiprocessors * (threads_per_multiprocessor // BLOCK) * BLOCK


def launch_of(numel: int, unroll: int, resident: int) -> Launch:
    """The launch of a draw of `numel` > 0 elements, `unroll` of them in each call of a thread."""
    threads = min(-(-numel // BLOCK) * BLOCK, resident)
    calls = (numel - 1) // (threads * unroll) + 1
    return Launch(threads, calls, calls * STEP)
