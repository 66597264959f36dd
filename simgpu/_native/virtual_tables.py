"""Questions that PyTorch asks a backend in C++, answered where Python has no say in them.

A device guard and hooks written in Python are asked for a few things; to the rest their C++ halves
answer by themselves, in virtual functions (torch/csrc/acc/Module.cpp). Here such an object gets a
table of virtual functions of its own: a copy of PyTorch's, in which a function can be replaced.

Which function is which is never assumed. Whoever replaces one tries it out by asking PyTorch what
it now answers, and puts it back where the answer is not the one that was given; or reads in the
headers that come with PyTorch in which order the functions stand (`_native_answers`). An object has
its table replaced, and the guard is lent to CUDA's name, only if the place where PyTorch keeps its
guards was found to hold ours (`tables`); otherwise nothing is written. What is put in a table
calls no Python function: at its entry the handler of a signal would run, and where that raises, as
Ctrl-C's does, the error would be lost and the answer be garbage. At the end of the process, when
nothing of Python may be called any more, the objects get their old tables back.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from simgpu._naming import PRIVATE_USE_1
from simgpu._native.dlpack_relabel import words
from simgpu._patches import Patches

_CUDA = 1

_FUNCTIONS = 40  # at least as many as such an object has; what follows them is copied too
_BEFORE = 2  # words in front of the functions: what C++ knows of the class
_LIBRARY = {"linux": "libc10.so", "darwin": "libc10.dylib"}
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # the guards, by device type

# What C++ points to may never be freed.
_kept: dict[int, Any] = {}


def library() -> ctypes.CDLL | None:
    """PyTorch's lowest library, or None on a platform whose calls are not understood here."""
    name = _LIBRARY.get(sys.platform)
    if name is None or sys.byteorder != "little":
        return None
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
    except OSError:
        return None


def _in_python_object(instance: object) -> int:
    """What should be the address of the C++ object that a Python object stands for."""
    return words[(id(instance) >> 3) + object.__basicsize__ // 8]


class Table:
    """The virtual functions of the C++ object at `address`, which the caller knows to be one."""

    def __init__(self, address: int) -> None:
        self._at = address >> 3
        stock = words[self._at]
        self._functions = (ctypes.c_int64 * (_BEFORE + _FUNCTIONS))()
        ctypes.memmove(self._functions, stock - 8 * _BEFORE, ctypes.sizeof(self._functions))
        words[self._at] = ctypes.addressof(self._functions) + 8 * _BEFORE
        _kept[id(self)] = self
        atexit.register(words.__setitem__, self._at, stock)

    def replace(self, position: int, function: Any) -> Callable[[], None]:
        """Let a C function of `ctypes` be the one at `position`; returns what puts it back."""
        stock = self._functions[_BEFORE + position]
        self._functions[_BEFORE + position] = ctypes.cast(function, ctypes.c_void_p).value or 0
        _kept[id(function)] = function

        def put_back() -> None:
            self._functions[_BEFORE + position] = stock

        return put_back


def _guards() -> Any:
    """Addresses of the registered guards by device type, or None where they cannot be found."""
    found = library()
    try:
        return found and (ctypes.c_int64 * (PRIVATE_USE_1 + 1)).in_dll(found, _REGISTRY)
    except ValueError:
        return None


def use_guard_for_cuda(patches: Patches) -> bool:
    """Let questions about a CUDA device go to our guard, until `patches` are undone.

    C++ asks the guard of a device that is named, in places where it can only end the process if
    there is none. Returns whether that was possible.
    """
    guards = _guards()
    if guards is None or not _kept:  # no table was made: `tables` did not find our guard
        return False
    stock, guards[_CUDA] = guards[_CUDA], guards[PRIVATE_USE_1]
    patches.then(lambda: guards.__setitem__(_CUDA, stock))
    return True


def tables(guard: object, hooks: object) -> tuple[Table, Table] | None:
    """Tables of the registered guard and hooks, or None where they cannot be found.

    Python objects hold the addresses of the C++ ones in the same place; that it is this place is
    seen by the guard, whose address PyTorch tells.
    """
    guards = _guards()
    if guards is None or _in_python_object(guard) != guards[PRIVATE_USE_1]:
        return None
    return Table(_in_python_object(guard)), Table(_in_python_object(hooks))
