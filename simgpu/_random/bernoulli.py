"""Kinds of coin tosses: with one probability for all, or with a tensor of them.

One probability is compared with uniform numbers, which grow with the words that they are made of:
so the words themselves are compared with the first one that is no success any more.

A tensor of probabilities has a kernel of its own (`bernoulli_tensor_cuda_kernel`): thread t tosses
elements 4t to 4t + 3 with its four words, whatever the GPU, and a number equal to the probability
is a success. So `torch.bernoulli(p)` is not `torch.rand_like(p) < p`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from simgpu._random import philox
from simgpu._random.arithmetic import unit_double, unit_float
from simgpu._random.fill import Source
from simgpu._random.philox import Array, Words, Words32

TENSOR_INCREMENT = 10  # what the kernel with a tensor of probabilities asks the generator for


class Toss:
    """True where the uniform float of a word is less than p; `limit` is `first_failure(p)`."""

    dtype: Any = np.bool_
    unroll = 4

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def drawn(self, lanes: int) -> int:
        return lanes

    def convert(self, words: Words, outs: Sequence[Array]) -> None:
        for word, out in zip(words, outs, strict=False):
            below(word[: len(out)], self.limit, out)


class TossOfDoubles:
    """True where the uniform double of two words is less than p."""

    dtype: Any = np.bool_
    unroll = 2

    def __init__(self, p: float) -> None:
        self.p = p

    def drawn(self, lanes: int) -> int:
        return 2 * lanes

    def convert(self, words: Words, outs: Sequence[Array]) -> None:
        for lane, out in enumerate(outs):
            low, high = words[2 * lane : 2 * lane + 2]
            np.less(unit_double(low[: len(out)], high[: len(out)]), self.p, out=out)


def below(words: Words32, limit: int, out: Array) -> None:
    """Which words are less than `limit`, which may be 2**32."""
    if limit < 2**32:
        np.less(words, np.uint32(limit), out=out)
    else:
        out[...] = True


@functools.lru_cache(maxsize=256)
def first_failure(p: float) -> int:
    """The first word whose uniform float is not less than `p`; 2**32 if there is none."""
    low, high = 0, 2**32
    while low < high:
        middle = (low + high) // 2
        if float(unit_float(np.array([middle], np.uint32))[0]) < p:
            low = middle + 1
        else:
            high = middle
    return low


def limit_of(p: float) -> int:
    """`first_failure` of a probability that a kernel takes as a float."""
    return first_failure(float(np.float32(p)))


def toss_each(probabilities: torch.Tensor, source: Source) -> torch.Tensor:
    """A toss for each of `probabilities` (CPU, float or double, contiguous), as booleans."""
    seed, place = source.stream.take(TENSOR_INCREMENT)
    chances = probabilities.numpy().reshape(-1)
    tossed = np.empty(len(chances), np.bool_)
    step = 4 * philox.CHUNK
    for start in range(0, len(chances), step):
        part = chances[start : start + step]
        words = philox.words_of_threads(seed, place, start // 4, -(-len(part) // 4))
        for lane, word in enumerate(words):
            mine = part[lane::4]
            drawn = unit_float(word[: len(mine)])
            np.less_equal(drawn, mine, out=tossed[start + lane : start + len(part) : 4])
    return torch.from_numpy(tossed).view(probabilities.shape)


def order_of_elements(
    sizes: Sequence[int], strides: Sequence[int], others: Sequence[int]
) -> list[int]:
    """The dimensions, slowest first, in which that kernel walks through a tensor and its chances.

    It exchanges two dimensions where one of the tensors lies better then and none worse
    (`rearrangeDims` of ATen/cuda/CUDAApplyUtils.cuh). A tensor whose elements may be the same
    memory is computed in a contiguous one.
    """
    if _may_overlap(sizes, strides):
        strides = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    order = list(range(len(sizes)))
    for i in range(len(order) - 1):
        if sizes[order[i]] == 1:
            continue
        for j in range(i + 1, len(order)):
            if sizes[order[j]] == 1:
                continue
            pairs = [(each[order[i]], each[order[j]]) for each in (strides, others)]
            if any(a < b for a, b in pairs) and not any(a > b for a, b in pairs):
                order[i], order[j] = order[j], order[i]
    return order


def _may_overlap(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a dimension reaches as far as the next slower one, so that elements may be one."""
    dims = sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size > 1)
    return any(
        (size - 1) * stride >= slower for (stride, size), (slower, _) in itertools.pairwise(dims)
    )
