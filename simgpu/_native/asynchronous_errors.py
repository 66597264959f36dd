"""Raise an error in another thread, wherever its Python code stands.

That is the last way to end a thread which asks nobody whether it may go on. The error comes between
two instructions of Python: within a call of C code, such as `time.sleep`, only once that is over.
"""

from __future__ import annotations

import ctypes

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = [ctypes.c_ulong, ctypes.py_object]
_raise_in.restype = ctypes.c_int


def raise_in_thread(ident: int, error: type[BaseException]) -> None:
    """Raise an error without arguments in the thread of this identifier, unless it has ended."""
    _raise_in(ident, error)
