"""`randperm`: the numbers from 0 on, sorted by random keys.

From ATen/native/cuda/Randperm.cu and Randperm.cuh. The keys have as many bits as make equal ones
unlikely; where some are equal all the same, the first thread of each group of them shuffles it.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from simgpu._random import philox
from simgpu._random.fill import Source, draw
from simgpu._random.geometry import launch_of
from simgpu._random.integers import from_to
from simgpu._random.philox import Array


def bits_of_keys(numel: int) -> int:
    """How many bits of the keys of `numel` > 0 numbers are compared."""
    count = float(numel)
    chance = math.log(0.9) * 12  # at most one permutation in ten has equal keys
    return min(64, math.ceil(math.log2(count - (6 * count * count + 1) / chance)))


def permutation(numel: int, source: Source) -> Array:
    """The numbers 0 to `numel` - 1 as 64-bit integers, shuffled as on the GPU of `source`."""
    if not numel:
        return np.empty(0, np.int64)
    bits = bits_of_keys(numel)
    dtype = torch.int32 if bits <= 32 else torch.int64
    kind = from_to(dtype, torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    launch = launch_of(numel, kind.unroll, source.resident)
    keys: Array = np.empty(numel, np.int64)
    draw(keys, *source.stream.take(launch.increment), launch, kind)
    width = 32 if bits <= 32 else 64
    compared = keys.view(np.uint64) & np.uint64(2**bits - 1)
    if bits == width:  # the sort takes the highest bit of a whole key for its sign
        compared ^= np.uint64(2 ** (width - 1))
    order = np.argsort(compared, kind="stable")
    seed, place = source.stream.take(numel)
    _shuffle_equals(order, compared[order], seed, place)
    return order


def _shuffle_equals(order: Array, keys: Array, seed: int, place: int) -> None:
    """Shuffle the numbers under each group of equal keys, from the last one on."""
    equal = keys[1:] == keys[:-1]
    heads = np.flatnonzero(equal & ~np.concatenate(([False], equal[:-1])))
    for head in heads.tolist():
        size = 2
        while head + size < len(keys) and keys[head + size] == keys[head]:
            size += 1
        drawn: list[int] = []
        for last in range(size - 1, 0, -1):
            number = size - 1 - last
            if not number % 4:
                block = philox.words_of_threads(seed, place + number // 4, head, 1)
                drawn.extend(int(word[0]) for word in block)
            other = drawn[number] % (last + 1)
            one, two = head + last, head + other
            order[one], order[two] = order[two], order[one]
