"""Which line of the program asked for something, and what every thread is running.

The line is one of the user's files. Frames of torch, Triton and simgpu do not count, nor those of
wrappers around torch's functions: `typing_extensions.deprecated`, context managers of `contextlib`.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import sys
import sysconfig
import threading
import traceback
import types
from types import CodeType, FrameType

_NAME = __name__.partition(".")[0]
_FOREIGN = tuple(
    os.path.dirname(os.path.abspath(getattr(found, "origin", None) or __file__)) + os.sep
    for found in map(importlib.util.find_spec, ("torch", "triton", _NAME))
)
_PYTHON = sysconfig.get_path("stdlib") + os.sep
# `warnings.deprecated` is in `_py_warnings` in newer releases of Python.
_WRAPPING = ("typing_extensions", "contextlib", "functools", "warnings", "_py_warnings")

# By address of a code object and place in it; the object is kept, so that no other has its address.
_texts: dict[tuple[int, int], tuple[CodeType, str]] = {}
_MOST_TEXTS = 2**16


def calling_line() -> str:
    """The innermost line that is not of torch, Triton or simgpu, as "file:line"."""
    frame = sys._getframe(1)
    while is_foreign(frame.f_code.co_filename) and frame.f_back is not None:
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
def is_foreign(file: str) -> bool:
    """Whether a file belongs to torch, Triton or simgpu, or wraps functions of torch."""
    wrapping = (getattr(sys.modules.get(name), "__file__", None) for name in _WRAPPING)
    return file.startswith(_FOREIGN) or file in wrapping


@functools.cache
def is_of_program(file: str) -> bool:
    """Whether a file is not of torch, Triton, simgpu or Python."""
    of_python = file.startswith((_PYTHON, "<frozen ")) and f"-packages{os.sep}" not in file
    return not (of_python or is_foreign(file))


def is_of_library(file: str) -> bool:
    """Whether a file belongs to torch, Triton, simgpu, Python, or an installed package."""
    return not is_of_program(file) or f"-packages{os.sep}" in file


def program_line(error: BaseException | None = None) -> str:
    """The innermost line of the program that this thread or `error` came through; "" for none."""
    if error is None:
        file, _, _ = (line := calling_line()).rpartition(":")
        return line if is_of_program(file) else ""
    lines = [(f.f_code.co_filename, n) for f, n in traceback.walk_tb(error.__traceback__)]
    return next((f"{file}:{line}" for file, line in reversed(lines) if is_of_program(file)), "")


# Tracebacks without simgpu's own frames, where the mistake is not simgpu's.
#
# What kernels refuse on purpose has one of a few types. simgpu also calls the program, as the
# function of a rank or a hook of autograd: what that raises is the program's, whatever its type. An
# error of another type that simgpu raises, such as an AttributeError, may be a mistake in it, and
# keeps all frames.

# By which simgpu calls an operator of torch: a frame of it below one of simgpu adds nothing.
OPERATORS = "torch._ops"
_REFUSALS = (RuntimeError, IndexError, ValueError)
_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))


def module_of(frame: FrameType) -> str:
    """The full name of the module that a frame runs in."""
    return str(frame.f_globals.get("__name__", ""))


def calling_module() -> str:
    """The full name of the module that has called the function which asks."""
    return module_of(sys._getframe(2))


def is_own(module: str) -> bool:
    """Whether a module of this name is one of simgpu."""
    return module.partition(".")[0] == _NAME


def may_hide_own_frames(error: BaseException) -> bool:
    """Whether an error is a refusal, or one that the program has raised where simgpu called it."""
    if isinstance(error, _REFUSALS):
        return True
    for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
        if is_own(module_of(frame)):
            return False
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            return True
    return False


def hide_own_frames(error: BaseException) -> None:
    """Take simgpu's frames out of the tracebacks of an error, its causes and its contexts.

    A context that simgpu has raised and handled by itself is not shown either.
    """
    seen: set[int] = set()
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        if may_hide_own_frames(link) and (shown := _shown(link.__traceback__)) is not None:
            link.__traceback__ = shown
        links += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]
        context = link.__context__
        if context is not None and may_hide_own_frames(context):
            link.__suppress_context__ |= _shown(context.__traceback__) is None


def _shown(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback without simgpu's frames; None if no other is in it."""
    kept, below_own = [], False
    while traceback is not None:
        name = module_of(traceback.tb_frame)
        below_own = is_own(name) or (below_own and name == OPERATORS)
        if not below_own:
            kept.append(traceback)
        traceback = traceback.tb_next
    rest: types.TracebackType | None = None
    for one in reversed(kept):
        rest = types.TracebackType(rest, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return rest


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


def passed_through(error: BaseException, package: types.ModuleType) -> bool:
    """Whether a frame of an error's traceback is in a file of `package`."""
    folder = os.path.dirname(str(package.__file__)) + os.sep
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename.startswith(folder) for frame, _ in frames)
