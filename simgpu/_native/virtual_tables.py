"""Replace virtual functions of one C++ object, and put them back.

A device guard and hooks written in Python are asked for a few things; to the rest their C++ halves
answer by themselves, in virtual functions (torch/csrc/acc/Module.cpp). Here such an object gets a
table of virtual functions of its own: a copy of PyTorch's, in which a function can be replaced.

An object is only written to if it names the class that it should be of (`class_name`). No position
in a table is taken for granted: whoever replaces a function tries it out by asking PyTorch what it
now answers, and puts it back where the answer is not the one that was given, or reads the order of
the functions in the headers that come with PyTorch (`constant_answers`). What is put in a table
calls no Python function: at its entry the handler of a signal would run, and where that raises, as
Ctrl-C's does, the error would be lost and the answer be garbage. At the end of the process, when
nothing of Python may be called any more, the objects get their old tables back.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from typing import Any

from simgpu._native.process_memory import WORD, can_read, words

# At least as many functions as such an object has; what follows them is copied too.
_FUNCTIONS = 40
_BEFORE = 2  # words in front of the functions: offset of the object, and its type_info

# What C++ points to may never be freed.
_kept: dict[int, Any] = {}


def class_name(address: int) -> str | None:
    """The mangled name of the C++ class of the object at `address`, or None if there is no such.

    By the Itanium C++ ABI an object begins with the address of its virtual functions; in front of
    these stands the address of the class's type_info, which is {its own table, its name}.
    """
    if not can_read(address, WORD):
        return None
    functions = words[address >> 3]
    size = WORD * (_BEFORE + _FUNCTIONS)
    if not can_read(functions - WORD * _BEFORE, size) or words[(functions >> 3) - 2] != 0:
        return None
    type_info = words[(functions >> 3) - 1]
    if not can_read(type_info, 2 * WORD):
        return None
    name = words[(type_info >> 3) + 1]
    if not can_read(name & -WORD, WORD):  # names are not aligned to words
        return None
    return ctypes.string_at(name).decode("ascii", "replace")


class Table:
    """The virtual functions of the C++ object at `address`, whose class the caller has checked."""

    def __init__(self, address: int) -> None:
        self._at = address >> 3
        stock = words[self._at]
        self._functions = (ctypes.c_int64 * (_BEFORE + _FUNCTIONS))()
        ctypes.memmove(self._functions, stock - WORD * _BEFORE, ctypes.sizeof(self._functions))
        self._stock = tuple(self._functions)
        words[self._at] = ctypes.addressof(self._functions) + WORD * _BEFORE
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

    def is_replaced(self, position: int) -> bool:
        """Whether the function at `position` is one of ours now."""
        at = _BEFORE + position
        return bool(self._functions[at] != self._stock[at])
