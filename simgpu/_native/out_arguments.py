"""Write a number to an address that a caller of a C function gave, as `int *out` in C."""

from __future__ import annotations

import ctypes

from simgpu._native.process_memory import WORD, can_read


def write_word(address: int, value: int) -> None:
    """Write an unsigned number of 64 bits to `address`; raises ValueError where none can stand."""
    if not can_read(address, WORD):
        raise ValueError(f"no number of {WORD} bytes can be written to {address:#x}")
    ctypes.c_uint64.from_address(address).value = value
