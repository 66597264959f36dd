"""Operators of which `torch.jit.trace` records the parts that PyTorch composes them of.

PyTorch's tracer leaves out `convolution` and waits for `_convolution`, which its composite calls.
A kernel for the whole would give the trace a result that comes from nowhere.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._kernels.overloads import PythonKernel
from simgpu._runtime.launch import HOST_KEYS

# What has a kernel here and no record in a trace (DONT_RECORD_TRACE, tools/autograd/
# gen_trace_type.py); the others of that list are composed for any device.
_RECORDED_IN_PARTS = ("aten::convolution",)


def composed_while_traced(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, or PyTorch's composite of `op` while its parts are what a trace records."""
    if op._name not in _RECORDED_IN_PARTS:
        return kernel

    def run(*args: Any, **kwargs: Any) -> Any:
        if _is_recorded():
            return op._handle.redispatch_boxed(HOST_KEYS, *args, **kwargs)
        return kernel(*args, **kwargs)

    return run


def _is_recorded() -> bool:
    """Whether a trace records this call; it takes no notice of what kernels do for it."""
    return torch._C._is_tracing()
