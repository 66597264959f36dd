"""Seconds, and bytes per second, that a caller names."""

from __future__ import annotations

from numbers import Real
from typing import Any


def check_amount(name: str, value: Any, unit: str, zero: bool = True) -> None:
    """Raise TypeError for what is no number, ValueError for one below 0, and for 0 without `zero`.

    Neither infinity nor NaN is an amount.
    """
    wanted = f"a number of {unit}, {'from 0 on' if zero else 'above 0'}, is expected"
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number:
        raise TypeError(f"{name}={value!r}: {wanted}")
    if not 0 <= value < float("inf") or not (value or zero):
        raise ValueError(f"{name}={value!r}: {wanted}")
