"""Which line of the program asked for something, and what every thread is running.

Nor is it that of a wrapper around a function of torch: `typing_extensions.deprecated`, a context
manager of `contextlib`.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import sysconfig
import threading
import traceback
from types import CodeType, FrameType

import torch

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FOREIGN = tuple(
    os.path.abspath(folder) + os.sep for folder in (os.path.dirname(torch.__file__), _PACKAGE)
)
_PYTHON = sysconfig.get_path("stdlib") + os.sep
# `warnings.deprecated` is in `_py_warnings` in newer releases of Python.
_WRAPPING = ("typing_extensions", "contextlib", "functools", "warnings", "_py_warnings")
_WRAPPERS = {vars(sys.modules[name])["__file__"] for name in _WRAPPING if name in sys.modules}

# By address of a code object and place in it; the object is kept, so that no other has its address.
_texts: dict[tuple[int, int], tuple[CodeType, str]] = {}
_MOST_TEXTS = 2**16


def calling_line() -> str:
    """The innermost line that is neither of torch nor of simgpu, as "file:line"."""
    frame = sys._getframe(1)
    while _is_foreign(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    key = id(frame.f_code), frame.f_lasti
    found = _texts.get(key)
    if found is None:
        if len(_texts) >= _MOST_TEXTS:
            _texts.clear()
        text = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        found = _texts[key] = frame.f_code, text
    return found[1]


@functools.cache
def _is_foreign(file: str) -> bool:
    return file in _WRAPPERS or file.startswith(_FOREIGN)


@functools.cache
def is_of_program(file: str) -> bool:
    """Whether a file is neither of torch, nor of simgpu, nor of Python."""
    of_python = file.startswith((_PYTHON, "<frozen ")) and f"-packages{os.sep}" not in file
    return not (of_python or _is_foreign(file))


def program_line(error: BaseException | None = None) -> str:
    """The innermost line of the program that this thread or `error` came through; "" for none."""
    if error is None:
        file, _, _ = (line := calling_line()).rpartition(":")
        return line if is_of_program(file) else ""
    lines = [(f.f_code.co_filename, n) for f, n in traceback.walk_tb(error.__traceback__)]
    return next((f"{file}:{line}" for file, line in reversed(lines) if is_of_program(file)), "")


# The frame of every thread of the process, without the risk of a deadlock with oneself.


def current_frames() -> dict[int, FrameType]:
    """The frame that each thread runs, by the thread's identifier; its own is that of the caller.

    Python up to 3.11.8 makes them under a lock of the interpreter. Should the garbage collector run
    meanwhile, and find a `threading.local`, it waits for that same lock for ever (python/cpython
    issue 106883), so it does not run meanwhile.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return {**sys._current_frames(), threading.get_ident(): sys._getframe(1)}
    finally:
        if collects:
            gc.enable()
