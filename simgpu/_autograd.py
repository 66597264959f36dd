"""Backward passes run in the thread that asked for them.

A device guard written in Python reports one device only, so PyTorch's engine has a worker thread
for simgpu:0 and none for simgpu:1 and up. Without worker threads it needs none: for the length of
every backward pass, autograd's multithreading is off in the calling thread.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.variable import Variable

from simgpu import _world


class _Engine:
    """Stands in for PyTorch's engine; changes nothing while there are no simulated devices."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        if not _world.active or not torch._C._is_multithreading_enabled():
            return self._engine.run_backward(*args, **kwargs)
        torch._C._set_multithreading_enabled(False)
        try:
            return self._engine.run_backward(*args, **kwargs)
        finally:
            torch._C._set_multithreading_enabled(True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def install() -> None:
    """Put the stand-in where every call of `backward` and `grad` finds it."""
    engine: Any = _Engine(Variable._execution_engine)
    Variable._execution_engine = engine
