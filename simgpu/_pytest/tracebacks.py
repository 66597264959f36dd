"""Tracebacks of tests: without simgpu's own frames, where a test broke a rule of the devices.

A kernel refuses some calls below the line of the test, in files that whoever wrote the test does
not know. CUDA's errors end at that line, and so do these; `--full-trace` shows all frames. An error
of another type, such as an AttributeError, may be a mistake in simgpu, and keeps them.
"""

from __future__ import annotations

import sys

import pytest

_PACKAGE = __name__.partition(".")[0]
# What kernels raise of arguments that they do not take, on purpose: those of torch and of simgpu.
_REFUSALS = (RuntimeError, IndexError, ValueError)


@pytest.hookimpl
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Mark the modules of simgpu as pytest has it: before it makes the text of an error.

    Not around other hooks: those of pytest for unittest are what finds the error of a TestCase.
    """
    if call.excinfo is None:
        return
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE:
            module.__dict__["__tracebackhide__"] = _is_refusal


def _is_refusal(error: pytest.ExceptionInfo[BaseException] | None) -> bool:
    return error is not None and isinstance(error.value, _REFUSALS)
