"""Tracebacks of tests: without simgpu's own frames, where the mistake is not simgpu's.

A kernel refuses some calls below the line of the test, in files that the author of the test does
not know. CUDA's errors end at that line, and so do these. simgpu also calls the program, as the
function of a rank or a hook of autograd: what that raises is the program's, whatever its type.
`--full-trace` shows all frames. An error of another type that simgpu raises, such as an
AttributeError, may be a mistake in it, and keeps them.

PYTEST_DONT_REWRITE: simgpu.pytest_plugin imports it before pytest does, which would warn of that.
"""

from __future__ import annotations

import sys
import traceback
from itertools import pairwise

import pytest

from simgpu._util.frames import OPERATORS, is_own, may_hide_own_frames, module_of

# What raises the error of another thread again, below the line of the program that had called it.
_RAISING_AGAIN = {("torch._utils", "reraise"), ("dataparallel.parallel_apply", "_raise_failures")}
_BELOW_THE_CALL = (
    "torch._utils.",
    "torch.nn.modules.module.",
    "torch.nn.parallel.",
    "dataparallel.",
)


@pytest.hookimpl
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Mark the modules of simgpu as pytest has it: before it makes the text of an error.

    Not around other hooks: those of pytest for unittest are what finds the error of a TestCase.
    """
    if call.excinfo is None:
        return
    for name, module in list(sys.modules.items()):
        if is_own(name):
            module.__dict__["__tracebackhide__"] = _hides_simgpu
        elif name == OPERATORS:
            module.__dict__["__tracebackhide__"] = _hides_operators
        elif f"{name}.".startswith(_BELOW_THE_CALL):
            module.__dict__["__tracebackhide__"] = _is_raised_again


def _hides_simgpu(error: pytest.ExceptionInfo[BaseException] | None) -> bool:
    return error is not None and may_hide_own_frames(error.value)


def _hides_operators(error: pytest.ExceptionInfo[BaseException] | None) -> bool:
    """Where only simgpu has called them, and its frames are not shown."""
    if error is None or not _hides_simgpu(error):
        return False
    callers = [caller for caller, name in pairwise(_modules(error)) if name == OPERATORS]
    return all(map(is_own, {*callers} - {OPERATORS}))


def _is_raised_again(error: pytest.ExceptionInfo[BaseException] | None) -> bool:
    """Whether it is the error of a replica, whose own traceback is in its text."""
    if error is None:
        return False
    *_, (frame, _) = traceback.walk_tb(error.tb)
    return (module_of(frame), frame.f_code.co_name) in _RAISING_AGAIN


def _modules(error: pytest.ExceptionInfo[BaseException]) -> list[str]:
    return [module_of(frame) for frame, _ in traceback.walk_tb(error.tb)]
