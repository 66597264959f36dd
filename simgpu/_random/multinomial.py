"""`multinomial` with replacement: a uniform number for each sample, looked up in the running sum.

From ATen/native/cuda/MultinomialKernel.cu. (One sample, and samples without replacement, are drawn
by exponential numbers: ATen/native/Distributions.cpp.) A sample's thread depends on its place among
the samples and on its distribution, not on the GPU.
"""

from __future__ import annotations

import numpy as np
import torch

from simgpu._random import philox
from simgpu._random.arithmetic import unit_float
from simgpu._random.fill import Source
from simgpu._random.geometry import STEP
from simgpu._random.philox import Array

_BLOCK = 128  # threads
_MOST_ROWS = 65535  # of blocks in a grid


def with_replacement(weights: torch.Tensor, samples: int, source: Source) -> torch.Tensor:
    """Samples of every row of `weights` (CPU, float or double), as int64 of (rows, samples)."""
    rows = len(weights)
    chances = weights / weights.sum(1, keepdim=True)
    sums = chances.cumsum(1).numpy()
    width = -(-samples // _BLOCK) * _BLOCK
    high = min(rows, _MOST_ROWS)
    calls = -(-rows // high)
    seed, place = source.stream.take(calls * STEP)
    result = np.empty((rows, samples), np.int64)
    possible = chances.numpy() > 0
    for row in range(rows):
        call, block = divmod(row, high)
        drawn = np.empty(samples, sums.dtype)
        for start in range(0, samples, philox.CHUNK):
            count = min(philox.CHUNK, samples - start)
            words = philox.words_of_threads(seed, place + call, block * width + start, count, 1)
            drawn[start : start + count] = unit_float(words.x)
        result[row] = _buckets(sums[row], possible[row], drawn)
    return torch.from_numpy(result)


def _buckets(sums: Array, possible: Array, drawn: Array) -> Array:
    """The first category whose running sum reaches the number; never one without a chance."""
    found = np.minimum(np.searchsorted(sums, drawn, side="left"), len(sums) - 1)
    # Down to the last possible category before, or to the first one of all.
    last = np.maximum.accumulate(np.where(possible, np.arange(len(sums)), 0))
    return np.asarray(last[found])
