"""Kinds of real numbers: uniform, normal, exponential and others, in float and in double.

From ATen/core/TransformationHelper.h, ATen/native/cuda/DistributionTemplates.h and cuRAND's
curand_uniform.h and curand_normal.h. Half and bfloat16 are computed in float and rounded at the
end, as on a GPU. Where a GPU takes a fast approximation (logarithm, sine, cosine, tangent,
exponential of floats), NumPy's function stands for it, and the last bits differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from simgpu._random.arithmetic import bits_of_two, multiply_add, unit_double, unit_float
from simgpu._random.philox import Array, Words, Words32

_ANGLE = float(np.float32(2 * math.pi)) * 2.0**-32


class Unit:
    """Numbers in (0, 1], one per lane, with which most kinds here begin."""

    def __init__(self, double: bool) -> None:
        self.double = double
        self.unroll = 2 if double else 4
        self.dtype: Any = np.float64 if double else np.float32

    def drawn(self, lanes: int) -> int:
        return 2 * lanes if self.double else lanes

    def convert(self, words: Words, outs: Sequence[Array]) -> None:
        for lane, out in enumerate(outs):
            count = len(out)
            if self.double:
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

    def __init__(self, double: bool, rate: float) -> None:
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

    def __init__(self, double: bool, median: float, sigma: float) -> None:
        super().__init__(double)
        self.median, self.sigma = self.dtype(median), self.dtype(sigma)

    def transform(self, values: Array) -> None:
        if not self.double:
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

    def transform(self, values: Array) -> None:
        np.exp(values, out=values)


def _pair_of_floats(first: Words32, second: Words32, outs: Sequence[Array]) -> None:
    count = len(outs[0])
    radius = unit_float(first[:count])
    np.log(radius, out=radius)
    np.multiply(radius, np.float32(-2), out=radius)
    np.sqrt(radius, out=radius)
    # The product and the sum are rounded once, to a float.
    angle = (second[:count].astype(np.float32).astype(np.float64) * _ANGLE + _ANGLE / 2).astype(
        np.float32
    )
    for out, function in zip(outs, (np.sin, np.cos), strict=False):
        short = slice(len(out))
        function(angle[short], out=out)
        np.multiply(out, radius[short], out=out)


def _pair_of_doubles(words: Words, outs: Sequence[Array]) -> None:
    count = len(outs[0])
    radius = unit_double(words.x[:count], words.y[:count])
    np.log(radius, out=radius)
    np.multiply(radius, -2.0, out=radius)
    np.sqrt(radius, out=radius)
    turns = bits_of_two(words.z[:count], words.w[:count]).astype(np.float64)
    np.multiply(turns, 2.0**-52, out=turns)
    np.add(turns, 2.0**-53, out=turns)  # in half turns
    np.multiply(turns, math.pi, out=turns)
    for out, function in zip(outs, (np.sin, np.cos), strict=False):
        short = slice(len(out))
        function(turns[short], out=out)
        np.multiply(out, radius[short], out=out)
