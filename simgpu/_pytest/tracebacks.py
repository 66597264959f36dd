"""Tracebacks of tests: without simgpu's own frames, where the mistake is not simgpu's.

A kernel refuses some calls below the line of the test, in files that the author of the test does
not know. CUDA's errors end at that line, and so do these. simgpu also calls the program, as the
function of a rank or a hook of autograd: what that raises is the program's, whatever its type.
`--full-trace` shows all frames. An error of another type that simgpu raises, such as an
AttributeError, may be a mistake in it, and keeps them.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from itertools import pairwise
from types import FrameType

import pytest

_PACKAGE = __name__.partition(".")[0]
# By which simgpu calls an operator of torch: a frame of it below one of simgpu adds nothing.
_OPERATORS = "torch._ops"
# What kernels raise of arguments that they do not take, on purpose: those of torch and of simgpu.
_REFUSALS = (RuntimeError, IndexError, ValueError)
_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))


@pytest.hookimpl
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Mark the modules of simgpu as pytest has it: before it makes the text of an error.

    Not around other hooks: those of pytest for unittest are what finds the error of a TestCase.
    """
    if call.excinfo is None:
        return
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE:
            module.__dict__["__tracebackhide__"] = _hides_simgpu
        elif name == _OPERATORS:
            module.__dict__["__tracebackhide__"] = _hides_operators


def _hides_simgpu(error: pytest.ExceptionInfo[BaseException] | None) -> bool:
    return error is not None and (
        isinstance(error.value, _REFUSALS) or _is_of_the_program(_frames(error))
    )


def _hides_operators(error: pytest.ExceptionInfo[BaseException] | None) -> bool:
    """Where only simgpu has called them, and its frames are not shown."""
    if error is None or not _hides_simgpu(error):
        return False
    names = [_module_of(frame) for frame in _frames(error)]
    callers = {
        caller.partition(".")[0]
        for caller, name in pairwise(names)
        if name == _OPERATORS and caller != _OPERATORS
    }
    return callers == {_PACKAGE}


def _is_of_the_program(frames: list[FrameType]) -> bool:
    """Whether simgpu has called the program, and was not called by it again."""
    for frame in reversed(frames):
        if _module_of(frame).partition(".")[0] == _PACKAGE:
            return False
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            return True
    return False


def _frames(error: pytest.ExceptionInfo[BaseException]) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_tb(error.tb)]


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
