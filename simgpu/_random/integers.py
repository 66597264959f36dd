"""Kinds of whole numbers: `random_`, and the limits that PyTorch sets on it.

From ATen/native/cuda/DistributionTemplates.h and ATen/native/DistributionTemplates.h. The remainder
of a 32-bit word is taken, or of 64 bits where the range is large; both are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from simgpu._random.philox import Array, Words, Words32

WIDE = 2**28  # a range from which on 64 bits are drawn
_INT64_MIN = -(2**63)
_WORD = 2**64
DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


class Remainder:
    """base + (bits mod span), as 64-bit numbers with wrapping; a span of 2**64 is all bits."""

    dtype: Any = np.int64

    def __init__(self, span: int, base: int, wide: bool) -> None:
        self.span, self.base, self.wide = span, base, wide
        self.unroll = 2 if wide else 4

    def drawn(self, lanes: int) -> int:
        return 2 * lanes if self.wide else lanes

    def convert(self, words: Words, outs: Sequence[Array]) -> None:
        for lane, out in enumerate(outs):
            count, bits = len(out), out.view(np.uint64)
            if self.wide:
                _join(words[2 * lane][:count], words[2 * lane + 1][:count], bits)
                if self.span < _WORD:
                    np.remainder(bits, np.uint64(self.span), out=bits)
            elif self.span < 2**32:
                bits[...] = np.remainder(words[lane][:count], np.uint32(self.span))
            else:
                bits[...] = words[lane][:count]
            if self.base:
                np.add(bits, np.uint64(self.base % _WORD), out=bits)


def _join(high: Words32, low: Words32, out: Array) -> None:
    out[...] = high
    np.left_shift(out, np.uint64(32), out=out)
    np.bitwise_or(out, low, out=out)


def any_of(dtype: torch.dtype) -> Remainder:
    """`random_()`: every number of an integer dtype from 0 on, or all that a float counts to."""
    if dtype in DIGITS:
        return Remainder(2 ** DIGITS[dtype] + 1, 0, dtype is torch.float64)
    most = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    return Remainder(most + 1, 0, dtype is torch.int64)


def from_to(dtype: torch.dtype, low: int, high: int | None) -> Remainder:
    """`random_(low, high)`, where None is as far as the dtype goes; the limits are valid."""
    if high is None and low == _INT64_MIN:
        return Remainder(_WORD, 0, True)
    if high is None:
        if dtype in DIGITS:
            most = 2 ** DIGITS[dtype]
        else:
            most = 1 if dtype is torch.bool else torch.iinfo(dtype).max
        high = most + 1
        if dtype in DIGITS:
            low = _least(dtype, low)
    elif dtype in DIGITS:
        low, high = _least(dtype, low), _most(dtype, high)
    span = (high - low) % _WORD
    return Remainder(span, low, span >= WIDE)


def _least(dtype: torch.dtype, low: int) -> int:
    """`low`, or the next number that `dtype` has, where rounding would fall below it."""
    rounded = _rounded(dtype, low + 1)
    if rounded < low:
        return rounded + (1 << max(abs(low + 1).bit_length() - DIGITS[dtype], 0))
    return low


def _most(dtype: torch.dtype, high: int) -> int:
    """`high`, or the last number that `dtype` has, where rounding would reach it."""
    rounded = _rounded(dtype, high - 1)
    if rounded >= high:
        return rounded - (1 << max(abs(high - 1).bit_length() - DIGITS[dtype], 0))
    return high


def _rounded(dtype: torch.dtype, number: int) -> int:
    return int(torch.tensor(number, dtype=torch.int64, device="cpu").to(dtype).item())
