"""Which thread of a kernel fills which element, and in which order: that of memory.

TensorIterator sorts the dimensions by their strides and joins those that follow on each other
(ATen/native/TensorIterator.cpp). So a transposed or channels_last tensor is filled in memory order,
and only memory with gaps or strange overlaps makes a difference. A tensor whose last byte is
2 GiB or more behind the first is filled in two halves, each by a launch of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# How many threads a kernel of random numbers starts, and which thread fills which element.
#
# From `calc_execution_policy` and the grid-stride loop of ATen/native/cuda/DistributionTemplates.h:
# a thread per element, in blocks of 256, but no more than the GPU can hold at once. This is the
# only place where the model of the GPU has a say, and only in draws of more elements than that.
#
# Thread t, in its call number k, fills with its number i of that call the element k * threads *
# unroll + i * threads + t.

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


INT32_MAX = 2**31 - 1


class Part(NamedTuple):
    """Elements that one launch fills: dimensions from the fastest on, strides in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    start: int  # elements from the first one of the tensor

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)


def in_memory_order(sizes: Sequence[int], strides: Sequence[int]) -> Part:
    """All elements of a tensor, sorted and joined as TensorIterator does."""
    order = list(reversed(range(len(sizes))))
    for position in range(1, len(order)):
        at = position
        for before in range(position - 1, -1, -1):
            comparison = _compare(sizes, strides, order[before], order[at])
            if comparison > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif comparison < 0:
                break
    joined: list[tuple[int, int]] = []
    for dim in order:
        size, stride = sizes[dim], strides[dim]
        if joined:
            size_before, stride_before = joined[-1]
            if 1 in (size_before, size) or size_before * stride_before == stride:
                joined[-1] = size_before * size, stride if size_before == 1 else stride_before
                continue
        joined.append((size, stride))
    if not joined:
        joined.append((1, 1))
    return Part(tuple(size for size, _ in joined), tuple(stride for _, stride in joined), 0)


def _compare(sizes: Sequence[int], strides: Sequence[int], one: int, other: int) -> int:
    """Above 0 if dimension `one` is slower than `other`, below 0 if faster, 0 if neither."""
    if 0 in (strides[one], strides[other]):
        return 0
    if strides[one] != strides[other]:
        return 1 if strides[one] > strides[other] else -1
    return 1 if sizes[one] > sizes[other] else 0


def launches(part: Part, itemsize: int) -> list[Part]:
    """The parts that are filled by a launch each; more than one where 32 bits cannot reach all."""
    extents = [(size - 1) * stride for size, stride in zip(part.sizes, part.strides, strict=True)]
    if max(part.numel, 1 + sum(extents) * itemsize) <= INT32_MAX:
        return [part]
    # The largest dimension; of equal ones the slowest.
    dim = max(range(len(extents)), key=lambda at: (extents[at], at))
    size = part.sizes[dim]
    halves = []
    for first, count in ((0, size // 2), (size // 2, size - size // 2)):
        sizes = (*part.sizes[:dim], count, *part.sizes[dim + 1 :])
        halves.append(Part(sizes, part.strides, part.start + first * part.strides[dim]))
    return [piece for half in halves for piece in launches(half, itemsize)]


def is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements of a tensor are side by side, in whatever order."""
    part = in_memory_order(sizes, strides)
    return len(part.sizes) == 1 and (part.strides == (1,) or part.numel <= 1)


def overlaps_itself(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether several elements are one, as in an expanded tensor: nothing may be written there."""
    return any(size > 1 and not stride for size, stride in zip(sizes, strides, strict=True))
