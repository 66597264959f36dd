"""C functions by which PyTorch's C++ gets a number from Python without running Python code.

A function of a table of virtual functions (`virtual_tables`) must run no Python function, since
Ctrl-C may raise at its entry. The `__next__` of an iterator written in C is none: ctypes calls it
and hands its number to C++ in a register. Both answers here are numbers that fit one: a device,
which is two bytes, and an address. Whether a position of a table really asks for that is tried out
by the callers in `_backend`, who put the stock function back where PyTorch shows another answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import torch

from simgpu._naming import DEVICE_TYPE, MAX_DEVICES
from simgpu._native.device_bits import device_bits

# c10/core/impl/DeviceGuardImplInterface.h: type, exchangeDevice, getDevice, ...
GET_DEVICE = 2

_GetDevice = ctypes.CFUNCTYPE(ctypes.c_uint16)
_GetAddress = ctypes.CFUNCTYPE(ctypes.c_void_p)


def device_answer(indices: Iterator[int]) -> Any:
    """A C function that returns the device of type simgpu whose index comes next."""
    devices = [device_bits(torch.device(DEVICE_TYPE, index)) for index in range(MAX_DEVICES)]
    return _GetDevice(map(devices.__getitem__, indices).__next__)


def address_answer(address: int) -> Any:
    """A C function that returns `address`."""
    return _GetAddress(repeat(address).__next__)
