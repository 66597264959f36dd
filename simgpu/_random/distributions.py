"""Random words as numbers of a distribution: real numbers, coin tosses, integers.

From ATen/core/TransformationHelper.h, ATen/native/cuda/DistributionTemplates.h and cuRAND's
curand_uniform.h and curand_normal.h. Half and bfloat16 are computed in float and rounded at the
end, as on a GPU. Where a GPU takes a fast approximation (logarithm, sine, cosine, tangent,
exponential of floats), NumPy's function replaces it, and the last bits differ.
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
from simgpu._random.fill import Source
from simgpu._random.philox import (
    Array,
    Words,
    Words32,
    bits_of_two,
    multiply_add,
    unit_double,
    unit_float,
)

_ANGLE = float(np.float32(2 * math.pi)) * 2.0**-32


class _Lanes:
    """Numbers of one random word each, or of two where they are `wide`."""

    def __init__(self, wide: bool) -> None:
        self.wide = wide
        self.unroll = 2 if wide else 4

    def drawn(self, lanes: int) -> int:
        return 2 * lanes if self.wide else lanes


class Unit(_Lanes):
    """Numbers in (0, 1], with which most kinds here begin."""

    def __init__(self, double: bool) -> None:
        super().__init__(double)
        self.dtype: Any = np.float64 if double else np.float32

    def convert(self, words: Words, outs: Sequence[Array]) -> None:
        for lane, out in enumerate(outs):
            count = len(out)
            if self.wide:
                unit_double(words[2 * lane][:count], words[2 * lane + 1][:count], out)
            else:
                unit_float(words[lane][:count], out)
            self.transform(out)

    def transform(self, values: Array) -> None:
        """Turn uniform numbers into those of a distribution, in place."""


class Uniform(Unit):
    """Uniform in [low, high): the upper bound, which may be drawn, is turned into the lower one.

    `turns` is whether that is done here; where the numbers are rounded later, it has to wait.
    """

    def __init__(self, double: bool, low: float, high: float, span: float, turns: bool) -> None:
        super().__init__(double)
        self.low, self.high, self.span, self.turns = low, high, span, turns

    def transform(self, values: Array) -> None:
        multiply_add(values, self.span, self.low)
        if self.turns and values.max() >= self.high:
            np.copyto(values, values.dtype.type(self.low), where=values == self.high)


class Exponential(Unit):
    """-log(u) / rate, where the logarithm of 1 is a little below 0."""

    def __init__(self, double: bool, rate: float = 1) -> None:
        super().__init__(double)
        self.factor = -1 / self.dtype(rate)

    def transform(self, values: Array) -> None:
        half = self.dtype(np.finfo(self.dtype).eps / 2)
        ones = values >= 1 - half
        np.log(values, out=values)
        np.copyto(values, -half, where=ones)
        np.multiply(values, self.factor, out=values)


class Cauchy(Unit):
    """median + sigma * tan(pi * (u - 1/2)); floats are kept a little away from the poles."""

    def __init__(self, double: bool, median: float = 0, sigma: float = 1) -> None:
        super().__init__(double)
        self.median, self.sigma = self.dtype(median), self.dtype(sigma)

    def transform(self, values: Array) -> None:
        if not self.wide:
            eps = np.finfo(np.float32).eps
            np.clip(values, eps, 1 - eps, out=values)
        np.subtract(values, self.dtype(0.5), out=values)
        np.multiply(values, self.dtype(math.pi), out=values)
        np.tan(values, out=values)
        multiply_add(values, self.sigma, self.median)


class Geometric(Unit):
    """ceil(log(u) / log(1 - p))."""

    def __init__(self, double: bool, p: float) -> None:
        super().__init__(double)
        p = self.dtype(p)
        # A GPU has no fast log1p of floats and takes the logarithm of the rounded sum: 0 or
        # -inf at the ends, of which nothing on a GPU would warn.
        with np.errstate(divide="ignore"):
            self.below = np.log1p(-p) if double else np.log(np.float32(1) - p)

    def transform(self, values: Array) -> None:
        np.log(values, out=values)
        with np.errstate(divide="ignore", invalid="ignore"):
            np.divide(values, self.below, out=values)
        np.ceil(values, out=values)


class Normal:
    """mean + std * a standard normal number, by Box and Muller: two of two uniform ones."""

    def __init__(self, double: bool, mean: float, std: float) -> None:
        self.double = double
        self.unroll = 2 if double else 4
        self.dtype: Any = np.float64 if double else np.float32
        self.mean, self.std = self.dtype(mean), self.dtype(std)

    def drawn(self, lanes: int) -> int:
        return 4 if self.double or lanes > 2 else 2

    def convert(self, words: Words, outs: Sequence[Array]) -> None:
        for pair in range(0, len(outs), 2):
            if self.double:
                _pair_of_doubles(words, outs)
            else:
                _pair_of_floats(words[pair], words[pair + 1], outs[pair : pair + 2])
        for out in outs:
            multiply_add(out, self.std, self.mean)
            self.transform(out)

    def transform(self, values: Array) -> None:
        """Turn normal numbers into those of another distribution, in place."""


class LogNormal(Normal):
    """The exponential of a normal number."""

    def __init__(self, double: bool, mean: float = 1, std: float = 2) -> None:
        super().__init__(double, mean, std)

    def transform(self, values: Array) -> None:
        np.exp(values, out=values)


def _pair_of_floats(first: Words32, second: Words32, outs: Sequence[Array]) -> None:
    count = len(outs[0])
    radius = unit_float(first[:count])
    # The product and the sum are rounded once, to a float.
    angle = (second[:count].astype(np.float32).astype(np.float64) * _ANGLE + _ANGLE / 2).astype(
        np.float32
    )
    _box_and_muller(radius, angle, outs)


def _pair_of_doubles(words: Words, outs: Sequence[Array]) -> None:
    count = len(outs[0])
    radius = unit_double(words.x[:count], words.y[:count])
    turns = bits_of_two(words.z[:count], words.w[:count]).astype(np.float64)
    np.multiply(turns, 2.0**-52, out=turns)
    np.add(turns, 2.0**-53, out=turns)  # in half turns
    np.multiply(turns, math.pi, out=turns)
    _box_and_muller(radius, turns, outs)


def _box_and_muller(radius: Array, angle: Array, outs: Sequence[Array]) -> None:
    np.log(radius, out=radius)
    np.multiply(radius, radius.dtype.type(-2), out=radius)
    np.sqrt(radius, out=radius)
    for out, function in zip(outs, (np.sin, np.cos), strict=False):
        short = slice(len(out))
        function(angle[short], out=out)
        np.multiply(out, radius[short], out=out)


# Kinds of coin tosses: with one probability for all, or with a tensor of them.
#
# One probability is compared with uniform numbers, which grow with the words that they are made of:
# so the words themselves are compared with the first one that is no success any more.
#
# A tensor of probabilities has a kernel of its own (`bernoulli_tensor_cuda_kernel`): thread t
# tosses elements 4t to 4t + 3 with its four words, whatever the GPU, and a number equal to the
# probability is a success. So `torch.bernoulli(p)` is not `torch.rand_like(p) < p`.

TENSOR_INCREMENT = 10  # what the kernel with a tensor of probabilities asks the generator for


class Toss(_Lanes):
    """True where the uniform float of a word is less than p; `limit` is `first_failure(p)`."""

    dtype: Any = np.bool_

    def __init__(self, limit: int) -> None:
        super().__init__(wide=False)
        self.limit = limit

    def convert(self, words: Words, outs: Sequence[Array]) -> None:
        for word, out in zip(words, outs, strict=False):
            below(word[: len(out)], self.limit, out)


class TossOfDoubles(_Lanes):
    """True where the uniform double of two words is less than p."""

    dtype: Any = np.bool_

    def __init__(self, p: float) -> None:
        super().__init__(wide=True)
        self.p = p

    def convert(self, words: Words, outs: Sequence[Array]) -> None:
        for lane, out in enumerate(outs):
            low, high = words[2 * lane : 2 * lane + 2]
            np.less(unit_double(low[: len(out)], high[: len(out)]), self.p, out=out)


def toss(double: bool, p: float = 0.5) -> Toss | TossOfDoubles:
    """`bernoulli_(p)`: a kernel of floats takes the probability as a float."""
    return TossOfDoubles(p) if double else Toss(first_failure(float(np.float32(p))))


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


def toss_each(probabilities: torch.Tensor, source: Source) -> torch.Tensor:
    """A toss for each of `probabilities` (CPU, float or double, contiguous), as booleans."""
    seed, place = source.stream.take(TENSOR_INCREMENT)
    chances = probabilities.numpy().reshape(-1)
    tossed = np.empty(len(chances), np.bool_)
    step = 4 * philox.CHUNK
    for start in range(0, len(chances), step):
        part = chances[start : start + step]
        words = philox.words_of(seed, place, start // 4, -(-len(part) // 4))
        for lane, word in enumerate(words):
            mine = part[lane::4]
            drawn = unit_float(word[: len(mine)])
            np.less_equal(drawn, mine, out=tossed[start + lane : start + len(part) : 4])
    return torch.from_numpy(tossed).view(probabilities.shape)


def order_of_elements(
    sizes: Sequence[int], strides: Sequence[int], others: Sequence[int]
) -> list[int]:
    """The dimensions, slowest first, in which that kernel walks through a tensor and its chances.

    It exchanges two dimensions where one tensor is then read in order and none is read worse
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


# Kinds of whole numbers: `random_`, and the limits that PyTorch sets on it.
#
# From ATen/native/cuda/DistributionTemplates.h and ATen/native/DistributionTemplates.h. The
# remainder of a 32-bit word is taken, or of 64 bits where the range is large; both are exact.

WIDE = 2**28  # a range from which on 64 bits are drawn
_INT64_MIN = -(2**63)
_WORD = 2**64
DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


class Remainder(_Lanes):
    """base + (bits mod span), as 64-bit numbers with wrapping; a span of 2**64 is all bits."""

    dtype: Any = np.int64

    def __init__(self, span: int, base: int, wide: bool) -> None:
        super().__init__(wide)
        self.span, self.base = span, base

    def convert(self, words: Words, outs: Sequence[Array]) -> None:
        for lane, out in enumerate(outs):
            count, bits = len(out), out.view(np.uint64)
            if self.wide:
                bits[...] = words[2 * lane][:count]
                np.left_shift(bits, np.uint64(32), out=bits)
                np.bitwise_or(bits, words[2 * lane + 1][:count], out=bits)
                if self.span < _WORD:
                    np.remainder(bits, np.uint64(self.span), out=bits)
            elif self.span < 2**32:
                bits[...] = np.remainder(words[lane][:count], np.uint32(self.span))
            else:
                bits[...] = words[lane][:count]
            if self.base:
                np.add(bits, np.uint64(self.base % _WORD), out=bits)


def any_of(dtype: torch.dtype) -> Remainder:
    """`random_()`: from 0 to the largest integer, or the largest up to which floats are exact."""
    return Remainder(_last(dtype) + 1, 0, dtype in (torch.float64, torch.int64))


def _last(dtype: torch.dtype) -> int:
    """The largest integer of a dtype, or the largest up to which its floats are exact."""
    if dtype in DIGITS:
        return int(2 ** DIGITS[dtype])
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max


def from_to(dtype: torch.dtype, low: int, high: int | None) -> Remainder:
    """`random_(low, high)`, where None is as far as the dtype goes; the limits are valid."""
    if high is None and low == _INT64_MIN:
        return Remainder(_WORD, 0, True)
    if dtype in DIGITS:
        low = _reached(dtype, low, 1)
        high = None if high is None else _reached(dtype, high, -1)
    if high is None:
        high = _last(dtype) + 1
    span = (high - low) % _WORD
    return Remainder(span, low, span >= WIDE)


def _reached(dtype: torch.dtype, limit: int, step: int) -> int:
    """`limit`, or the next number that `dtype` has where rounding would go past it.

    `step` is 1 for the lower limit, where rounding could fall below it, and -1 for the upper one,
    where rounding could reach it.
    """
    number = limit + step
    rounded = int(torch.tensor(number, dtype=torch.int64, device="cpu").to(dtype).item())
    if rounded < limit if step > 0 else rounded >= limit:
        return rounded + step * (1 << max(abs(number).bit_length() - DIGITS[dtype], 0))
    return limit
