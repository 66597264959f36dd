"""Backward passes run in the thread that asked for them, and their errors come out of them.

A device guard written in Python reports one device only, so PyTorch's engine has a worker thread
for simgpu:0 and none for simgpu:1 and up. Without worker threads it needs none: for the length of
every backward pass, autograd's multithreading is off in the calling thread.

Where the guard is asked for its type in Python (see `_native_answers`), it is also asked while the
engine unwinds from an error that a hook raised. That error is then still pending in the
interpreter, where calling any Python function fails, in a place in which C++ must not fail: the
process would be aborted. `device_type` puts a pending error aside first, and `_in_this_thread`
raises it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.variable import Variable

from simgpu._backend.guard import put_aside
from simgpu._runtime import world


def _in_this_thread(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what may pass backward; changes nothing while there are no simulated devices."""
    if not world.active_devices:
        return run(*args, **kwargs)
    multithreading = torch._C._is_multithreading_enabled()
    try:
        # In here: a signal handler that raises does so after this call, at the earliest.
        torch._C._set_multithreading_enabled(False)
        return run(*args, **kwargs)
    except SystemError:  # "returned NULL without setting an exception": we have it
        if not put_aside.errors:
            raise
        error = put_aside.errors[0]
    finally:
        torch._C._set_multithreading_enabled(multithreading)
        put_aside.errors.clear()
    try:
        raise error
    finally:
        del error  # its traceback holds this frame


class _Engine:
    """Stands in for PyTorch's engine."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        return _in_this_thread(self._engine.run_backward, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _calling(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A call of scripted code, which asks the engine in C++ where it passes backward."""

    @functools.wraps(stock)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _in_this_thread(stock, self, *args, **kwargs)

    return call


def install() -> None:
    """Put the stand-ins where every call of `backward` and `grad` finds them."""
    engine: Any = _Engine(Variable._execution_engine)
    Variable._execution_engine = engine
    for scripted in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        scripted.__call__ = _calling(scripted.__call__)  # type: ignore[method-assign]
