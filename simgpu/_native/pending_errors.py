"""A Python error that is pending while C++ asks Python something: raised, so that it can be caught.

PyTorch's autograd engine asks the device guard for its type while the error of a user's function is
pending, and Python code that runs then must take it out first. ctypes raises what is pending when a
call through `ctypes.pythonapi` ends. So the function here is one of CPython's documented C API, and
nothing is written. It is no Python function: at the entry of one the handler of a signal would run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

raise_pending_error: Callable[[], object] = ctypes.pythonapi.PyErr_Occurred
ctypes.pythonapi.PyErr_Occurred.restype = ctypes.c_void_p
ctypes.pythonapi.PyErr_Occurred.argtypes = []
