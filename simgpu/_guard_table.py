"""Which device is current, told to PyTorch's C++: `.to("simgpu")` means the current device.

Where PyTorch converts, it asks the device guard for a missing index, in C++. A guard written in
Python is asked for its type alone; its `getDevice` answers 0 whatever device is current
(torch/csrc/acc/Module.cpp, PythonDeviceGuard). Here the guard gets a table of virtual functions of
its own: a copy of PyTorch's, with another `getDevice`.

Where that function is in the table is not assumed: PyTorch is asked for the current device through
the new table, and unless the answer is ours, the guard gets its old table back, and a missing index
goes on to mean device 0. It gets it back at the end of the process as well, when no Python function
may be called any more.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from pathlib import Path
from typing import Any

import torch

from simgpu import _autograd, _world
from simgpu._relabel import _words

_PRIVATE_USE_1 = 20

# c10/core/impl/DeviceGuardImplInterface.h: type, exchangeDevice, getDevice, ...
_GET_DEVICE = 2
_FUNCTIONS = 40  # at least as many as a guard has; what follows them in memory is copied too
_BEFORE = 2  # words in front of the functions: what C++ knows of the class

_LIBRARY = {"linux": "libc10.so", "darwin": "libc10.dylib"}
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # the guards, by device type

# A c10::Device is two bytes, type and index, and comes back in a register.
_GetDevice = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p)


def _guard_address() -> int | None:
    """Where the registered guard is, or None on a platform whose ABI is not known here."""
    name = _LIBRARY.get(sys.platform)
    if name is None or sys.byteorder != "little":
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
        registry = (ctypes.c_int64 * (_PRIVATE_USE_1 + 1)).in_dll(library, _REGISTRY)
    except (OSError, ValueError):
        return None
    return registry[_PRIVATE_USE_1] or None


class _Answer:
    """What `getDevice` says; the index can be set to try the table out."""

    tried: int | None = None

    def __call__(self, _: int | None) -> int:
        _autograd.device_type(None)  # puts a pending error aside, with which nothing can be called
        index = _world.current_device() if self.tried is None else self.tried
        return _PRIVATE_USE_1 | index << 8


# What C++ points to may never be freed.
_kept: list[Any] = []


def install() -> bool:
    """Let the registered guard know the current device; returns whether that was possible."""
    guard = _guard_address()
    current_index: Any = getattr(torch._C, "_accelerator_getDeviceIndex", None)
    if guard is None or current_index is None:
        return False
    at = guard >> 3
    stock = _words[at]
    answer = _Answer()
    function = _GetDevice(answer)
    table = (ctypes.c_int64 * (_BEFORE + _FUNCTIONS))()
    ctypes.memmove(table, stock - 8 * _BEFORE, ctypes.sizeof(table))
    table[_BEFORE + _GET_DEVICE] = ctypes.cast(function, ctypes.c_void_p).value or 0
    _kept.extend((answer, function, table))
    _words[at] = ctypes.addressof(table) + 8 * _BEFORE
    for answer.tried in (5, 3):
        if current_index() != answer.tried:
            _words[at] = stock
            return False
    answer.tried = None
    atexit.register(_words.__setitem__, at, stock)
    return True
