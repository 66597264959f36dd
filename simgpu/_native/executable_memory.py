"""Make a few machine instructions into a C function that C++ can call.

The memory is written while it may not be run and made executable by mprotect; the system may refuse
that (SELinux, hardened kernels), and then there is no function. What it returns is looked at before
anyone else may call it.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import sys
from typing import Any


def is_possible_here() -> bool:
    """Whether this is 64-bit Linux on x86-64, for which our instructions are."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 2**32


def function_of(code: bytes, answer: int) -> Any:
    """`code` as a C function that returns `answer`; None where there cannot be one.

    `code` begins with endbr64, as kernels want of functions that are called by address.
    """
    memory = executable(code)
    if memory is None:
        return None
    if ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(memory))() != answer:
        return None
    return memory


@functools.cache
def executable(code: bytes) -> Any:
    """Memory that begins with `code`, which may be run; None where there cannot be any."""
    if not is_possible_here():
        return None
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    pages.write(code)
    memory = (ctypes.c_char * mmap.PAGESIZE).from_buffer(pages)  # keeps the pages, too
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(ctypes.addressof(memory), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        return None
    return memory


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("description", ctypes.c_char_p),
    )


_ONE_ARGUMENT = 8  # METH_O
_new_builtin = ctypes.pythonapi.PyCFunction_NewEx
_new_builtin.restype = ctypes.py_object
_new_builtin.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
_kept: list[_Method] = []  # built-in functions point to them


def builtin_of(code: bytes, data: bytes) -> Any:
    """`code` as a built-in function of one argument; None where there cannot be one.

    It is handed two objects as CPython hands them on: `data`, and the argument.
    """
    memory = executable(code)
    if memory is None:
        return None
    method = _Method(b"machine_code", ctypes.addressof(memory), _ONE_ARGUMENT, None)
    _kept.append(method)
    return _new_builtin(ctypes.addressof(method), data, None)
