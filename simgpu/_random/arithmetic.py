"""Arithmetic as a GPU does it, element by element: random words as numbers, fused multiply-add.

The uniform numbers are bit for bit cuRAND's (curand_uniform.h): both of their steps round once, and
the first is exact. A product and a sum are one instruction of a GPU, which rounds once; NumPy has
no such function, so it is put together here of steps that lose nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simgpu._random.philox import Array, Words32

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_SPLIT = 2.0**27 + 1  # cuts a double into two halves of which products are exact
_SPLITTABLE = 2.0**960


def unit_float(words: Words32, out: Floats | None = None) -> Floats:
    """Numbers in (0, 1] of one word each."""
    drawn = np.empty(words.shape, np.float32) if out is None else out
    drawn[...] = words
    np.multiply(drawn, np.float32(2.0**-32), out=drawn)
    np.add(drawn, np.float32(2.0**-33), out=drawn)
    return drawn


def bits_of_two(low: Words32, high: Words32) -> npt.NDArray[np.uint64]:
    """53 bits of two words."""
    bits = high.astype(np.uint64)
    np.left_shift(bits, np.uint64(21), out=bits)
    return np.bitwise_xor(bits, low, out=bits)


def unit_double(low: Words32, high: Words32, out: Doubles | None = None) -> Doubles:
    """Numbers in (0, 1] of two words each."""
    drawn = np.empty(low.shape, np.float64) if out is None else out
    drawn[...] = bits_of_two(low, high)
    np.multiply(drawn, 2.0**-53, out=drawn)
    np.add(drawn, 2.0**-54, out=drawn)
    return drawn


def multiply_add(values: Array, factor: float, summand: float) -> None:
    """`values * factor + summand` in place, rounded once as by a GPU's fused instruction."""
    if summand == 0:
        if factor != 1:
            np.multiply(values, values.dtype.type(factor), out=values)
    elif factor == 1:
        np.add(values, values.dtype.type(summand), out=values)
    elif values.dtype == np.float32:
        values[...] = _sum_to_odd(values.astype(np.float64) * float(factor), float(summand))
    elif max(abs(factor), abs(summand)) < _SPLITTABLE:
        _multiply_add_doubles(values, float(factor), float(summand))
    else:
        values[...] = values * factor + summand


def _sum_to_odd(one: Doubles, other: Doubles | float) -> Doubles:
    """The sum with its last bit set wherever it is not exact.

    Rounding that to a shorter number gives what rounding the exact sum would.
    """
    total, lost = _two_sum(one, other)
    bits = total.view(np.int64)
    even = (lost != 0) & (bits & 1 == 0)
    bits += np.where(even, np.where((lost > 0) == (total > 0), 1, -1), 0)
    return total


def _two_sum(one: Doubles | float, other: Doubles | float) -> tuple[Doubles, Doubles]:
    """The rounded sum, and what the rounding lost (Knuth)."""
    total = np.asarray(one + other)
    part = total - one
    return total, np.asarray((one - (total - part)) + (other - part))


def _multiply_add_doubles(values: Doubles, factor: float, summand: float) -> None:
    """By Boldo and Melquiond: add the parts exactly, but for one sum that is rounded to odd."""
    product = values * factor
    high = values * _SPLIT
    high = high - (high - values)
    low = values - high
    factor_high = factor * _SPLIT
    factor_high = factor_high - (factor_high - factor)
    factor_low = factor - factor_high
    lost = low * factor_low - (
        ((product - high * factor_high) - low * factor_high) - high * factor_low
    )
    middle, smallest = _two_sum(lost, summand)
    largest, small = _two_sum(product, middle)
    np.add(largest, _sum_to_odd(smallest, small), out=values)
